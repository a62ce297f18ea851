"""Read JSON objects with members that are nested too deep, or numbers that are too long, for Python's parser.

``json.loads`` refuses more than about a thousand levels of nesting and integers of more than 4,300 digits. This module
splits the object into its members without recursion. Members that are nested or refused stay text (``Raw``).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],"]', re.DOTALL)
_SPACE = " \t\n\r"
_SPLIT_TOO = ("vllm_xargs", "sampling_params", "extra_args")
"""Objects in the body that may contain tags. They are also split into their members."""
_LEVELS = 3
"""Levels of objects that are split: the body, its ``sampling_params``, their ``extra_args``."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A JSON value that was not parsed."""

    text: str

    def parsed(self) -> Any:
        """Return the parsed value; None if ``json.loads`` refuses it."""
        try:
            return json.loads(self.text)
        except (RecursionError, ValueError):
            return None


def loads(body: bytes) -> dict[str, Any]:
    """Return the object's members. Numbers, strings, literals and flat lists are parsed, other values are ``Raw``.

    Raises:
        json.JSONDecodeError: the text is not an object. The text of a ``Raw`` value may be malformed.
        UnicodeDecodeError: the body is not text.
    """
    return _members(body.decode(json.detect_encoding(body), "surrogatepass"), _LEVELS)


def dumps(value: Any) -> str:
    """Return a result of ``loads`` as JSON text. ``Raw`` values are written unchanged."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{dumps(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value, separators=(",", ":"))


def _members(text: str, levels: int) -> dict[str, Any]:
    """Return the members by name. Of equal names the last counts, as in ``json.loads``."""
    parts = _split(text)
    return {} if parts == [""] else dict(_member(part, levels - 1) for part in parts)


def _split(text: str) -> list[str]:
    """Split an object's text into the texts of its members."""
    parts: list[str] = []
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        mark = token.group() if len(token.group()) == 1 else ""
        if mark == '"' or (depth == 0 and (mark != "{" or parts or text[: token.start()].strip(_SPACE))):
            raise json.JSONDecodeError("Expecting an object", text, token.start())
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        if (mark == "{" and depth == 1 and begin == 0) or (mark == "," and depth == 1) or depth == 0:
            if begin:
                parts.append(text[begin : token.start()].strip(_SPACE))
            begin = token.end()
    if depth or not parts or text[begin:].strip(_SPACE):
        raise json.JSONDecodeError("Expecting an object", text, begin)
    return parts


def _member(text: str, levels: int) -> tuple[str, Any]:
    if not text.startswith('"'):
        raise json.JSONDecodeError("Expecting a name", text, 0)
    name, end = json.JSONDecoder().raw_decode(text)
    rest = text[end:].lstrip(_SPACE)
    if not rest.startswith(":"):
        raise json.JSONDecodeError("Expecting ':'", text, end)
    value = rest[1:].lstrip(_SPACE)
    if levels and name in _SPLIT_TOO and value.startswith("{"):
        return name, _members(value, levels)
    return name, Raw(value) if value.startswith("{") else _value(value)


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError):
        return Raw(text)
    inner = value if isinstance(value, list) else [value]
    return Raw(text) if any(isinstance(item, list | dict) for item in inner) else value
