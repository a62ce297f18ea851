"""From calls as they ended to the turns of a trace. Pure.

Token counts come from the server's ``usage``; a turn without them is in ``turns.jsonl`` and not in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from continuum_traces.schema import ToolCall, Turn

from continuum_client.conversation import NO_SHAPE, Shape
from continuum_client.program import ToolRun
from continuum_client.reply import Content, Reply, ToolAsked


@dataclass(frozen=True, slots=True)
class Ended:
    """One call, over. Seconds on the client's clock."""

    sent_s: float
    finish_s: float
    reply: Reply
    runs: tuple[ToolRun, ...] = ()
    """Tools since the call before."""
    shape: Shape = NO_SHAPE
    is_last: bool = False
    error: str | None = None
    turn_id: str | None = None

    @property
    def counted(self) -> bool:
        """It can be a turn of a trace: it went well and the server counted its tokens."""
        return self.error is None and bool(self.reply.prompt_tokens) and self.reply.output_tokens is not None


@dataclass(frozen=True, slots=True)
class Join:
    """How a prompt follows from the turn before it."""

    new_input_tokens: int
    carried_tokens: int | None = None
    """Of the turn before; None: all of its output."""
    kept_tokens: int | None = None


def join(before: Ended | None, now: Ended) -> Join:
    """What of the context survived into this prompt.

    An agent that only appends: the previous prompt, its output without the reasoning, new text. Where messages were
    rewritten (told from their marks; else from a prompt that got shorter) the kept part is in proportion to
    characters, or what the server had cached.
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
    output = max(1, before.reply.output_tokens or 0)
    carried = min(output - min(output, before.reply.reasoning_tokens), prompt - previous)
    return Join(prompt - previous - carried, carried_tokens=None if carried == output else carried)


def turn_of(
    ended: Ended, joined: Join, calls: tuple[ToolCall, ...], gap_s: float | None, carried_tokens: int | None
) -> Turn:
    """A turn of the trace, now that what came after it is known.

    Args:
        ended: its call.
        joined: how its prompt followed from the turn before.
        calls: tools after it.
        gap_s: seconds from its end to the next call; None: there was none.
        carried_tokens: of its output in the next prompt; None: all.
    """
    reply = ended.reply
    tools_s = max((call.start_s + (call.duration_s or 0.0) for call in calls), default=0.0)
    return Turn(
        new_input_tokens=joined.new_input_tokens,
        output_tokens=max(1, reply.output_tokens or 0),
        carried_tokens=carried_tokens,
        kept_tokens=joined.kept_tokens,
        tool_calls=calls,
        gap_overhead_s=0.0 if gap_s is None else max(0.0, round(gap_s - tools_s, 6)),
        text="".join(reply.text) or None if reply.content == "full" else None,
        cached_tokens=reply.cached_tokens,
        ttft_s=_since(ended.sent_s, reply.first_token_s),
        llm_s=_since(ended.sent_s, ended.finish_s),
    )


def calls_after(ended: Ended, runs: Sequence[ToolRun], key: Callable[[str, str], str]) -> tuple[ToolCall, ...]:
    """The tools between this turn and the next: those the agent measured, else those the reply asked for.

    Measured tools get the arguments of the reply's calls where there are as many of one as of the other.
    """
    asked = ended.reply.asked
    content = ended.reply.content
    if not runs:
        return tuple(
            ToolCall(key_of(tool, key), command=_command(tool, content), digest=_digest(tool, content))
            for tool in asked
        )
    alike = len(runs) == len(asked)
    return tuple(
        ToolCall(
            run.name,
            duration_s=round(max(0.0, run.end_s - max(run.start_s, ended.finish_s)), 6),
            start_s=max(0.0, round(run.start_s - ended.finish_s, 6)),
            command=_command(asked[number], content) if alike else None,
            digest=_digest(asked[number], content) if alike else None,
        )
        for number, run in enumerate(runs)
    )


def key_of(tool: ToolAsked, key: Callable[[str, str], str]) -> str:
    """The name to record a tool under."""
    return key(tool.name, "".join(tool.arguments)) or tool.name


def _command(tool: ToolAsked, content: Content) -> str | None:
    return "".join(tool.arguments) or None if content == "full" else None


def _digest(tool: ToolAsked, content: Content) -> str | None:
    return tool.digest() if tool.arguments and content == "digest" else None


def _since(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else max(0.0, round(end_s - start_s, 6))
