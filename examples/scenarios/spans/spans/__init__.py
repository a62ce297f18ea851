"""Half-open spans of numbers."""


def merged(spans):
    """Overlapping or touching spans joined, in order."""
    out = []
    for start, end in spans:
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return out
