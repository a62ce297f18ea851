"""A program's closed loop, written once: when each turn is sent, its tags, its prompt, and the record it leaves.

``converse`` is a generator: it yields what it wants (wait, send) and is sent what came of it. The virtual engine and
the live load generator carry the same wants out, one on a heap of virtual time, one in asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from continuum_traces.schema import Program, Tags, Turn, TurnRecord

Answer = TypeVar("Answer")
Answer_contra = TypeVar("Answer_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Job:
    """One program to play, and when it arrives."""

    program: Program
    arrival_s: float
    salt: int = 0
    """Plays of the same program with different salts share no tokens."""

    @property
    def program_id(self) -> str:
        """The id it is played under: a repeated program has another one each time."""
        return self.program.program_id if self.salt == 0 else f"{self.program.program_id}#{self.salt}"


class Context(Protocol[Answer_contra]):
    """The tokens of one program so far, in the form that an engine takes. It opens with the shared prefix."""

    def keep(self, tokens: int) -> None:
        """Drop everything behind the first ``tokens`` tokens."""

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        """Append so many tokens that no other program has: the context is now the prompt of turn ``index``."""

    def add_output(self, index: int, turn: Turn, answer: Answer_contra) -> None:
        """Append the last ``turn.carried`` tokens of the turn's output."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wanted: let the clock run until turn ``index`` is due."""

    index: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """Wanted: send turn ``index`` now, with the context as its prompt."""

    index: int
    turn: Turn
    tags: Tags


@dataclass(frozen=True, slots=True)
class Answered(Generic[Answer]):
    """What came of a turn: a whole answer. Seconds on the clock of the waits."""

    sent_s: float
    finish_s: float
    answer: Answer
    """For the context."""
    first_token_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed_tries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """What came of a turn, sent or still to be sent: no answer. The program goes no further."""

    sent_s: float
    finish_s: float | None
    """None: the run ended before the turn did."""
    error: str
    failed_tries: tuple[str, ...] = ()


Want = Wait | Send
Conversation = Generator[Want | TurnRecord, Answered[Answer] | Failed | None, None]


def converse(
    program: Program,
    program_id: str,
    arrival_s: float,
    context: Context[Answer],
    turn_id: Callable[[int], str],
    exact_lengths: bool = True,
) -> Conversation[Answer]:
    """Play the program's turns: for each a ``Wait``, a ``Send``, and once its result is known its record.

    Args:
        program: the trace.
        program_id: the id it is played under.
        arrival_s: when its first turn is due.
        context: made for this play alone.
        turn_id: from a turn's index to the id that every try of it carries.
        exact_lengths: prompts and outputs are as long as the trace says.
    """
    due_s, reusable, last = arrival_s, program.reusable_tokens(), len(program.turns) - 1
    for index, turn in enumerate(program.turns):
        given_up = yield Wait(index, due_s)
        if isinstance(given_up, Failed):
            never_sent = TurnRecord(program_id, index, given_up.sent_s, given_up.sent_s, turn_id=turn_id(index))
            yield _failed(never_sent, given_up)
            return
        open_turn(context, program, index)
        tags = Tags(
            program_id=program_id,
            is_last_step=index == last,
            this_func_call=turn.slowest_tool.name if turn.slowest_tool is not None else None,
            parent_id=program.parent_id,
            turn_id=turn_id(index),
        )
        result = yield Send(index, turn, tags)
        assert result is not None, "a turn that was sent has a result"
        record = TurnRecord(
            program_id=program_id,
            turn=index,
            due_s=due_s,
            sent_s=result.sent_s,
            reusable_tokens=reusable[index] if exact_lengths else None,
            is_last=index == last,
            turn_id=tags.turn_id,
        )
        if isinstance(result, Failed):
            yield _failed(record, result)
            return
        yield _answered(record, result, turn)
        context.add_output(index, turn, result.answer)
        due_s = result.finish_s + turn.gap_s


def go_on(
    conversation: Conversation[Answer],
    result: Answered[Answer] | Failed | None,
    on_turn: Callable[[TurnRecord], None],
) -> Want | None:
    """Tell the conversation what came of its last want (None: the wait is over). Its next want; None: it has ended."""
    want = conversation.send(result)
    while isinstance(want, TurnRecord):
        on_turn(want)
        following = next(conversation, None)
        if following is None:
            return None
        want = following
    return want


def open_turn(context: Context[Answer], program: Program, index: int) -> None:
    """Make the context the prompt of turn ``index``: what is kept of it, and the turn's new tokens."""
    turn, already = program.turns[index], 0
    if index == 0 and program.shared_prefix_id is not None:
        already = program.shared_prefix_tokens
    if turn.kept_tokens is not None:
        context.keep(turn.kept_tokens)
        already = min(already, turn.kept_tokens)
    context.add_input(index, turn, max(0, turn.new_input_tokens - already))


def _failed(record: TurnRecord, result: Failed) -> TurnRecord:
    return replace(record, finish_s=result.finish_s, error=result.error, failed_tries=result.failed_tries)


def _answered(record: TurnRecord, result: Answered[Answer], turn: Turn) -> TurnRecord:
    return replace(
        record,
        first_token_s=result.first_token_s,
        finish_s=result.finish_s,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        cached_tokens=result.cached_tokens,
        tools=tuple(call.name for call in turn.tool_calls),
        gap_s=None if record.is_last else turn.gap_s,
        failed_tries=result.failed_tries,
    )
