import unittest

from spans import merged


class SpansTest(unittest.TestCase):
    def test_apart(self):
        self.assertEqual(merged([(1, 2), (4, 5)]), [(1, 2), (4, 5)])

    def test_touching(self):
        self.assertEqual(merged([(1, 2), (2, 3)]), [(1, 3)])

    def test_inside(self):
        self.assertEqual(merged([(1, 9), (2, 3)]), [(1, 9)])

    def test_any_order(self):
        self.assertEqual(merged([(4, 6), (1, 5)]), [(1, 6)])
