"""Words of a text."""


def words(text):
    """Words in lower case, without what is neither a letter nor a digit."""
    return [word.lower() for word in text.split(" ")]
