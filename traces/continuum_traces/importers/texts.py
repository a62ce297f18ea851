"""Messages in OpenAI's and Anthropic's forms: how many tokens their text is, by estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from continuum_traces.importers.usage import estimate_tokens

Assume = Callable[[str, str], object]
"""Notes that something (in the singular) was counted in some way."""
IMAGE_TOKENS = 765
"""What a picture of 1,024 x 1,024 pixels costs in OpenAI's models at high detail (docs: images and vision)."""
IMAGE = f"counted as {IMAGE_TOKENS} tokens; its real number depends on size and model"
MEDIA = "not counted: no text"

_IMAGES = ("image_url", "input_image", "image")
_REASONING = ("thinking", "redacted_thinking", "reasoning")
_TEXTS = ("text", "content", "input", "arguments", "output", "refusal", "summary")
"""Fields of a part of a message that are text, or parts again."""


def message_tokens(message: Mapping[str, Any], assume: Assume) -> int:
    """Return the estimated tokens of a message with its tool calls, without its reasoning; at least 1."""
    images: list[str] = []
    text = message_text(message, images)
    for kind in images:
        assume(*(("image", IMAGE) if kind in _IMAGES else (kind, MEDIA)))
    return max(1, estimate_tokens(text) + IMAGE_TOKENS * sum(kind in _IMAGES for kind in images))


def message_text(message: Mapping[str, Any], media: list[str] | None = None) -> str:
    """Return the text of a message and its tool calls. The kinds of parts that are no text go to ``media``."""
    media = [] if media is None else media
    calls = message.get("tool_calls") or message.get("function_call")
    if message.get("type") in ("function_call", "function_call_output"):  # an item of the Responses API
        return _text(message, media)
    return _text(message.get("content"), media) + (json.dumps(calls) if calls else "")


def reasoning_tokens(message: Mapping[str, Any]) -> int:
    """Return the estimated tokens of a message's reasoning, which no later prompt repeats."""
    texts = [message.get(name) for name in ("reasoning_content", "reasoning", "thinking")]
    content = message.get("content")
    parts = [each for each in content if isinstance(each, Mapping)] if isinstance(content, list) else []
    texts += [part.get("thinking") or part.get("text") for part in parts if part.get("type") in _REASONING]
    return estimate_tokens(next((text for text in texts if isinstance(text, str)), ""))


def prompt_head_tokens(row: Mapping[str, Any]) -> int:
    """Return the estimated tokens of what stands before the messages: tools, and a system prompt of its own."""
    tools, system = row.get("tools") or row.get("functions"), row.get("system") or row.get("instructions")
    return estimate_tokens((json.dumps(tools) if tools else "") + _text(system, []))


def _text(value: Any, media: list[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _part_text(value, media)
    if isinstance(value, Iterable):
        return "".join(_text(each, media) for each in value)
    return ""


def _part_text(part: Mapping[str, Any], media: list[str]) -> str:
    kind = str(part.get("type") or "text")
    if kind in _REASONING:
        return ""
    if kind == "tool_use":
        return json.dumps({name: part.get(name) for name in ("name", "input")})
    text = "".join(_text(part.get(name), media) for name in _TEXTS)
    if not text and kind not in ("text", "input_text", "output_text"):
        media.append(kind)
    return text
