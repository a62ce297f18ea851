"""Names for URLs."""

from slugs.words import words


def slug(title):
    """Lower-case words of a title, joined by dashes."""
    return "-".join(words(title))
