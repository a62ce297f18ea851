import unittest

from slugs import slug


class SlugsTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_punctuation(self):
        self.assertEqual(slug("What's new, then?"), "what-s-new-then")

    def test_spaces(self):
        self.assertEqual(slug("  two   spaces "), "two-spaces")
