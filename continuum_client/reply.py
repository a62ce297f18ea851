"""How much of a reply is recorded, and the reply of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from continuum_traces.wire.answers import Answer, ToolAsked

Content = Literal["none", "digest", "full"]
"""How much text is recorded: no text, digests of tool arguments, or the whole answer and arguments."""

CONTENTS: tuple[Content, ...] = get_args(Content)


def check_content(content: str, source: str = "content") -> Content:
    """Return ``content`` if it is a ``Content``.

    Args:
        content: the name.
        source: where the name comes from, for the error message.

    Raises:
        ValueError: ``content`` is another name.
    """
    if content not in CONTENTS:
        raise ValueError(f"{source} {content!r}: there are {', '.join(CONTENTS)}")
    return content


@dataclass(slots=True)
class Reply(Answer):
    """A reply, of which ``content`` is recorded."""

    content: Content = "none"

    def __post_init__(self) -> None:
        self.with_text = self.with_text or self.content == "full"

    @property
    def calls(self) -> list[ToolAsked]:
        """The tool calls, with their arguments as far as ``content`` allows."""
        if self.content != "none":
            return self.asked
        return [ToolAsked(tool.name, tool.call_id) for tool in self.asked]
