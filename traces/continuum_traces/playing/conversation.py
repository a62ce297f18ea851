"""Play one program: decide when each turn is sent and with which tags and prompt, and record the turn.

``converse`` is a generator: it yields the next action (``Wait``, ``Send``) and receives the action's result. The
virtual engine carries out the actions in virtual time, the live load generator in asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, Literal, Protocol, TypeVar, cast

from continuum_traces.schema import Program, Tags, Turn, TurnRecord

Answer = TypeVar("Answer")
Answer_contra = TypeVar("Answer_contra", contravariant=True)


Sends = Literal["full", "no-last", "none"]
"""Which tags a replay sends: all; all but which turn is the last; none."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program to play, and the instant at which it arrives."""

    program: Program
    arrival_s: float
    salt: int = 0
    """Jobs of the same program with different salts share no tokens."""
    hints: tuple[Tags, ...] = ()
    """Tags of each turn, besides those that ``converse`` makes; empty: there are none."""
    sends: Sends = "full"
    counted: bool = True
    """False in the warm-up and the cool-down, as ``ArrivalRecord.counted``."""

    @property
    def program_id(self) -> str:
        """The program id that the engine sees. A program that is played several times has a different id each time."""
        return self.program.program_id if self.salt == 0 else f"{self.program.program_id}#{self.salt}"


class Context(Protocol[Answer_contra]):
    """The tokens of one program so far, in the form that an engine takes. They begin with the shared prefix."""

    def keep(self, tokens: int) -> None:
        """Drop all tokens after the first ``tokens`` tokens."""

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        """Append ``tokens`` tokens that no other program has. The context is then the prompt of turn ``index``."""

    def add_output(self, index: int, turn: Turn, answer: Answer_contra) -> None:
        """Append the last ``turn.carried`` tokens of the turn's output."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An action: wait until turn ``index`` is due."""

    index: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """An action: send turn ``index`` now, with the context as its prompt."""

    index: int
    turn: Turn
    tags: Tags
    turn_id: str
    """The client's name for the turn, sent or not."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[Answer]):
    """The result of a turn. Instants are seconds on the clock of ``Wait.until_s``."""

    sent_s: float
    finish_s: float | None
    """None: the run ended during the turn."""
    answer: Answer | None = None
    """The complete answer, for ``Context.add_output``."""
    error: str | None = None
    """Why the turn has no answer, or was given up before it was sent. The program ends with this turn."""
    first_token_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed_tries: tuple[str, ...] = ()
    alone_s: float | None = None
    token_gaps_ms: Mapping[str, int] | None = None


_MEASURED = tuple(field.name for field in fields(Ended) if field.name != "answer")
"""The fields of a turn's record that are those of its result."""
Action = Wait | Send
Conversation = Generator[Action | TurnRecord, Ended[Answer] | None, None]


def converse(
    program: Program,
    program_id: str,
    arrival_s: float,
    context: Context[Answer],
    turn_id: Callable[[int], str],
    exact_lengths: bool = True,
    hints: Sequence[Tags] = (),
    sends: Sends = "full",
    skipped_s: Callable[[], float] = lambda: 0.0,
) -> Conversation[Answer]:
    """Play the program's turns: yield for each turn a ``Wait``, a ``Send`` and, after its result, the turn's record.

    Args:
        program: the program to play.
        program_id: the program id that the engine sees.
        arrival_s: the instant at which the first turn is due.
        context: the program's context, still without turns.
        turn_id: returns the turn id of the turn with a given index.
        exact_lengths: whether prompts and outputs have the lengths of the trace.
        hints: further tags of each turn; empty: there are none.
        sends: which tags are sent.
        skipped_s: returns the seconds by which all waits of the run so far were shortened.
    """
    due_s, reusable, last = arrival_s, program.reusable_tokens(), len(program.turns) - 1
    for index, turn in enumerate(program.turns):
        before_s = skipped_s()
        result, own_id = (yield Wait(index, due_s)), turn_id(index)
        due_s -= skipped_s() - before_s
        sent = result is None
        if result is None:
            open_turn(context, program, index)
            tags = Tags() if sends == "none" else Tags(turn_id=own_id)
            if program.tagged and sends != "none":
                tags = replace(
                    hints[index] if hints else tags,
                    program_id=program_id,
                    is_last_step=index == last if sends == "full" else None,
                    this_func_call=turn.slowest_tool.name if turn.slowest_tool is not None else None,
                    parent_id=program.parent_id,
                    turn_id=own_id,
                )
            result = yield Send(index, turn, tags, own_id)
            assert result is not None, "a turn that was sent has a result"
        answered = result.error is None
        yield TurnRecord(
            program_id=program_id,
            turn=index,
            due_s=due_s if sent else result.sent_s,
            **{name: getattr(result, name) for name in _MEASURED},
            reusable_tokens=reusable[index] if exact_lengths and sent else None,
            tools=tuple(call.name for call in turn.tool_calls) if answered else (),
            gap_s=turn.gap_s if answered and index < last else None,
            is_last=sent and index == last,
            turn_id=own_id,
            metadata=program.metadata if sent and index == 0 else None,
            started_by=program.started_by if index == 0 else None,
        )
        if not answered or result.finish_s is None:
            return
        context.add_output(index, turn, cast("Answer", result.answer))
        due_s = result.finish_s + turn.gap_s


def skipped_note(skipped_s: float) -> list[str]:
    """Return what must be said of a run in which so many idle seconds were skipped; empty: none were."""
    return [f"{skipped_s:.0f} s without any request were skipped (--max-idle-all-s)"] if skipped_s else []


def go_on(
    conversation: Conversation[Answer],
    result: Ended[Answer] | None,
    on_turn: Callable[[TurnRecord], None],
) -> Action | None:
    """Pass the result of the last action to the conversation, and return the next action.

    Args:
        conversation: the program's conversation.
        result: the result; None: the wait is over.
        on_turn: called with the record of a turn that ended.

    Returns:
        The next action; None: the program ended.
    """
    action = conversation.send(result)
    while isinstance(action, TurnRecord):
        on_turn(action)
        following = next(conversation, None)
        if following is None:
            return None
        action = following
    return action


def open_turn(context: Context[Answer], program: Program, index: int) -> None:
    """Make the context the prompt of turn ``index``: drop what the turn does not keep, append its new tokens."""
    turn, already = program.turns[index], 0
    if index == 0 and program.shared_prefix_id is not None:
        already = program.shared_prefix_tokens
    if turn.kept_tokens is not None:
        context.keep(turn.kept_tokens)
        already = min(already, turn.kept_tokens)
    context.add_input(index, turn, max(0, turn.new_input_tokens - already))
