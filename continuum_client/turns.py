"""Convert the calls of a program to the turns of a trace. Pure functions.

Token counts come from the server's ``usage``. A call without token counts is in ``turns.jsonl``, but not in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.programs.lines import digest
from continuum_traces.schema import Tags, ToolCall, Turn
from continuum_traces.wire.answers import ToolAsked

from continuum_client.conversation import NO_SHAPE, Shape
from continuum_client.reply import Content, Reply
from continuum_client.tools import ToolRun


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended. Instants are seconds on the client's clock."""

    sent_s: float
    finish_s: float
    reply: Reply
    runs: tuple[ToolRun, ...] = ()
    """The tools that ran between the previous call and this one."""
    shape: Shape = NO_SHAPE
    error: str | None = None
    tags: Tags = field(default_factory=Tags)

    @property
    def counted(self) -> bool:
        """Whether the call can be a turn of a trace: it has no error, and the server sent its token counts."""
        return self.error is None and bool(self.reply.prompt_tokens) and self.reply.output_tokens is not None


@dataclass(frozen=True, slots=True)
class Join:
    """How a prompt continues the context of the previous turn. The fields are those of the trace format."""

    new_input_tokens: int
    carried_tokens: int | None = None
    """Output tokens of the previous turn that are in this prompt; None: all of them."""
    kept_tokens: int | None = None
    """Tokens of the previous context that are in this prompt; None: all of them."""


def join(before: EndedCall | None, now: EndedCall) -> Join:
    """Return how the prompt of ``now`` continues the context of ``before``.

    The prompt of an agent that only appends messages contains the previous prompt, the previous output without its
    reasoning, and new text. If the hashes of the messages show that the agent changed earlier messages, the kept tokens
    are estimated from the share of kept characters. If only the shorter length of the prompt shows it, the kept tokens
    are those that the server found in its cache.
    """
    prompt = now.reply.prompt_tokens or 0
    if before is None:
        return Join(prompt)
    previous = before.reply.prompt_tokens or 0
    share = before.shape.kept_share(now.shape)
    if share is not None and share < 1.0:
        kept = min(round(share * previous), prompt)
        return Join(prompt - kept, kept_tokens=kept)
    if prompt < previous:
        kept = min(now.reply.cached_tokens or 0, prompt)
        return Join(prompt - kept, kept_tokens=kept)
    output, choices = max(1, before.reply.choice_tokens or 0), max(1, len(before.reply.reasons))
    carried = min(output - min(output, before.reply.reasoning_tokens // choices), prompt - previous)
    return Join(prompt - previous - carried, carried_tokens=None if carried == output else carried)


def turn_of(
    ended: EndedCall, joined: Join, calls: tuple[ToolCall, ...], gap_s: float | None, carried_tokens: int | None
) -> Turn:
    """Return the turn of a call, once the next call or the end of the program is known.

    Args:
        ended: the call.
        joined: how the call's prompt continues the previous turn.
        calls: the tools that ran after the call.
        gap_s: seconds from the call's end to the next call; None: no call follows.
        carried_tokens: output tokens of the call that are in the next prompt; None: all of them.
    """
    reply = ended.reply
    tools_s = max((call.end_s for call in calls), default=0.0)
    return Turn(
        new_input_tokens=joined.new_input_tokens,
        output_tokens=max(1, reply.choice_tokens or 0),
        carried_tokens=carried_tokens,
        kept_tokens=joined.kept_tokens,
        tool_calls=calls,
        gap_overhead_s=0.0 if gap_s is None else max(0.0, round(gap_s - tools_s, 6)),
        text=reply.text or None if reply.content == "full" else None,
        cached_tokens=reply.cached_tokens,
        ttft_s=since(ended.sent_s, reply.first_token_s),
        llm_s=since(ended.sent_s, ended.finish_s),
    )


def calls_after(ended: EndedCall, runs: Sequence[ToolRun], key: Callable[[str, str], str]) -> tuple[ToolCall, ...]:
    """Return the tools between a turn and the next turn: the measured tools if there are any, else the tools that the
    reply calls.

    If there are as many measured tools as tool calls in the reply, each measured tool gets the arguments of one call.

    Args:
        ended: the turn's call.
        runs: the measured tools.
        key: a function from a tool's name and arguments to the name to record.
    """
    asked = ended.reply.calls
    content = ended.reply.content
    if not runs:
        return tuple(ToolCall(key_of(tool, key), **_arguments(tool, content)) for tool in asked)
    matched = len(runs) == len(asked)
    return tuple(
        ToolCall(
            run.name,
            duration_s=round(max(0.0, run.end_s - max(run.start_s, ended.finish_s)), 6),
            start_s=max(0.0, round(run.start_s - ended.finish_s, 6)),
            **(_arguments(asked[number], content) if matched else {}),
        )
        for number, run in enumerate(runs)
    )


def key_of(tool: ToolAsked, key: Callable[[str, str], str]) -> str:
    """Return the name under which a tool is recorded."""
    return key(tool.name, "".join(tool.arguments)) or tool.name


def _arguments(tool: ToolAsked, content: Content) -> dict[str, Any]:
    """Return the field of ``ToolCall`` that describes the arguments, as far as ``content`` allows."""
    text = "".join(tool.arguments)
    if not text or content == "none":
        return {}
    return {"command": text} if content == "full" else {"digest": digest(text)}


def since(start_s: float, end_s: float | None) -> float | None:
    """Return the seconds from ``start_s`` to ``end_s``, rounded to microseconds and at least 0."""
    return None if end_s is None else max(0.0, round(end_s - start_s, 6))
