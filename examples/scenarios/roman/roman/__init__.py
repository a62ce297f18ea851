"""Roman numerals."""

VALUES = [(1000, "M"), (500, "D"), (100, "C"), (50, "L"), (10, "X"), (5, "V"), (1, "I")]


def to_roman(number):
    """The numeral of a whole number from 1 to 3999."""
    out = ""
    for value, letter in VALUES:
        out += letter * (number // value)
        number %= value
    return out
