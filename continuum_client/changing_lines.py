"""Lines at the head of a prompt that change with each request. If asked, the proxy moves them to its end.

A server can reuse the KV of a prompt only up to the first token that differs from the prompt before. A line in the
system prompt that says the time or what is left of a budget therefore costs the whole history, in every turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

KNOWN = (
    r"\s*<total_tokens>.*</total_tokens>\s*$",
    r"(?i)\s*\W*(the )?current (date and |local )?(date|time|datetime|timestamp)\b.*\d",
)
"""Such lines that agents are known to send. Claude Code's billing header is none: vLLM drops it by itself."""
_HEADS = ("system", "developer")
_ENDS = ("user", "tool")
"""Roles of a last message to whose text lines are added."""
_Text = Callable[[str], str]


class ChangingLines:
    """Moves lines of a request's system prompt behind its last message.

    Args:
        patterns: regular expressions for the beginnings of lines.

    Raises:
        ValueError: a pattern is no regular expression.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        try:
            self._patterns = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise ValueError(f"{error.pattern!r} is no regular expression: {error}") from None

    def taken(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the request without these lines, and the lines. If there are none, the request is a copy.

        Nothing is taken if the last message cannot take the lines, such as an answer that the model is to continue.
        """
        lines: list[str] = []

        def cut(text: str) -> str:
            kept: list[str] = []
            for line in text.split("\n"):
                (lines if any(pattern.match(line) for pattern in self._patterns) else kept).append(line)
            return "\n".join(kept)

        without = {**body, **{name: _in_texts(body[name], cut) for name in ("system", "instructions") if name in body}}
        for name in ("messages", "input"):
            if isinstance(body.get(name), list):
                head = list(takewhile(_is_head, body[name]))
                without[name] = [*(_in_message(each, cut) for each in head), *body[name][len(head) :]]
        if not lines or appended(without, "") is None:
            return dict(body), ""
        return without, "\n".join(lines)


def appended(body: Mapping[str, Any], lines: str) -> dict[str, Any] | None:
    """Return the request with the lines behind its last message; None: that message cannot take them."""

    def add(text: str) -> str:
        return f"{text}\n\n{lines}"

    if isinstance(body.get("input"), str):
        return {**body, "input": add(body["input"])}
    name = "messages" if "messages" in body else "input"
    *before, last = body[name] if isinstance(body.get(name), list) and body[name] else [None]
    if not isinstance(last, Mapping):
        return None
    if last.get("type") == "function_call_output" and isinstance(last.get("output"), str):
        return {**body, name: [*before, {**last, "output": add(last["output"])}]}
    content = last.get("content")
    if last.get("role") not in _ENDS or not isinstance(content, (str, list)):
        return None
    kind = "input_text" if name == "input" else "text"
    longer = add(content) if isinstance(content, str) else [*content, {"type": kind, "text": lines}]
    return {**body, name: [*before, {**last, "content": longer}]}


def _is_head(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") in _HEADS


def _in_message(message: Mapping[str, Any], change: _Text) -> Mapping[str, Any]:
    return {**message, "content": _in_texts(message.get("content"), change)}


def _in_texts(content: Any, change: _Text) -> Any:
    """Change a text, or the text of each part, and leave out the parts of which nothing is left."""
    if isinstance(content, str):
        return change(content)
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            text = change(part["text"])
            if text or not part["text"]:
                parts.append({**part, "text": text})
        else:
            parts.append(part)
    return parts
