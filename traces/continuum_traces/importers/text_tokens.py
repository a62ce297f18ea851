"""Messages in OpenAI's and Anthropic's forms: how many tokens their text is, by estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from continuum_traces.importers.described import estimate_tokens

Assume = Callable[[str, str], object]
"""Notes that something (in the singular) was counted in some way."""
IMAGE_TOKENS = 765
"""What a picture of 1,024 x 1,024 pixels costs in OpenAI's models at high detail (docs: images and vision)."""
IMAGE = f"counted as {IMAGE_TOKENS} tokens; its real number depends on size and model"
MEDIA = "not counted: no text"

_ITEMS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "tool_result")
_CALLS = ("tool_use", "toolCall", "tool-call", "server_tool_use")
_IMAGES = ("image_url", "input_image", "image")
_REASONING = ("thinking", "redacted_thinking", "reasoning")
_TEXTS = ("text", "content", "input", "arguments", "output", "refusal", "summary", "run", "result")
"""Fields of a part of a message that are text, or parts again."""


def message_tokens(message: Mapping[str, Any], assume: Assume) -> int:
    """Return the estimated tokens of a message with its tool calls, without its reasoning; at least 1."""
    images: list[str] = []
    text = message_text(message, images)
    for kind in images:
        assume(*(("image", IMAGE) if kind in _IMAGES else (kind, MEDIA)))
    return max(1, estimate_tokens(text) + IMAGE_TOKENS * sum(kind in _IMAGES for kind in images))


def message_text(message: Mapping[str, Any], media: list[str] | None = None) -> str:
    """Return the text of a message, its tool calls and their results. The kinds of parts that are no text go to
    ``media``."""
    media = [] if media is None else media
    inner = message.get("message")
    if isinstance(inner, Mapping) and "content" not in message:
        message = {**message, **inner}
    calls = message.get("tool_calls") or message.get("toolCalls") or message.get("function_call")
    if message.get("type") in _ITEMS:  # an item of the Responses API
        return _text(message, media)
    content = next(
        (message[name] for name in ("content", "parts", "value", "text", "system_prompt") if message.get(name)), None
    )
    results = message.get("tool_results") or message.get("toolResults")
    return _text(content, media) + _text(results, media) + (json.dumps(calls) if calls else "")


def reasoning_tokens(message: Mapping[str, Any]) -> int:
    """Return the estimated tokens of a message's reasoning, which no later prompt repeats."""
    texts = [message.get(name) for name in ("reasoning_content", "reasoning", "thinking")]
    content = message.get("content") or message.get("parts")
    parts = [each for each in content if isinstance(each, Mapping)] if isinstance(content, list) else []
    texts += [part.get("text") for part in parts if part.get("thought") is True]
    texts += [part.get("thinking") or part.get("text") for part in parts if part.get("type") in _REASONING]
    return estimate_tokens(next((text for text in texts if isinstance(text, str)), ""))


def prompt_head_tokens(row: Mapping[str, Any]) -> int:
    """Return the estimated tokens of what stands before the messages: tools, and a system prompt of its own."""
    tools, system = row.get("tools") or row.get("functions"), row.get("system") or row.get("instructions")
    tools = "" if tools in (None, "[]", []) else tools if isinstance(tools, str) else json.dumps(tools)
    return estimate_tokens(tools + _text(system, []))


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
    if kind in _REASONING or part.get("thought") is True:
        return ""
    if kind in _CALLS:
        return json.dumps(
            {name: part[name] for name in ("name", "toolName", "input", "arguments", "args") if name in part}
        )
    if kind == "tool" and isinstance(part.get("state"), Mapping):  # OpenCode: a call with its result
        return json.dumps(part["state"].get("input")) + _text(part["state"].get("output"), media)
    function = part.get("functionCall") or part.get("functionResponse")
    if function:
        return json.dumps(function)
    text = "".join(_member_text(part.get(name), media) for name in _TEXTS)
    if not text and kind not in ("text", "input_text", "output_text"):
        media.append(kind)
    return text


def _member_text(value: Any, media: list[str]) -> str:
    """Return the text of a part's member, which can be an object of a tool: its JSON."""
    plain = isinstance(value, Mapping) and "type" not in value and not any(name in value for name in _TEXTS)
    return json.dumps(value) if plain and value else _text(value, media)
