"""Which program a request belongs to. A client chooses ids freely; a program is one conversation.

A request continues a program with its id under two conditions. Its prompt repeats at least half of what was the
program's own in its last prompt; a prefix that was shared from the start, such as a system prompt, proves nothing. And
no request of that program is in the engine. Any other request begins a new program, as if its id were new. So sharing
an id or reusing an old one gains nothing (docs/server/promises.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from continuum_server.policy.facts import ProgramState

IDLE_PROGRAMS_OF_AN_ID = 4
"""Idle programs remembered of one id: a conversation and its side conversations. The longest idle are forgotten."""
RECENT = 8
"""Turn ids and failed turns remembered of each program; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as far as it tells one conversation from another."""

    tokens: int = 0
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block, which stands for the prefix up to its end. None: unknown, continues any program."""


class TurnNumbers:
    """Which turn of its id an arriving request is.

    A request whose ``turn_id`` was used before is a retry of that turn. A request without ``turn_id`` is a retry of a
    failed turn with an equal prompt. Any other request is the next turn.
    """

    __slots__ = ("_by_id", "_failed")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._failed: list[tuple[Hashable, int]] = []

    def arrived(self, turn_id: str | None, prompt: Hashable, following: int) -> int:
        """The number of a request that arrives now.

        Args:
            turn_id: as the client sent it.
            prompt: equal for equal prompts.
            following: the number of a turn that did not arrive before.
        """
        known = self._failed_with(prompt) if turn_id is None else self._by_id.pop(turn_id, None)
        number = following if known is None else known
        self._failed = [entry for entry in self._failed if entry[1] != number]
        if turn_id is not None:
            self._by_id[turn_id] = number
            if len(self._by_id) > RECENT:
                del self._by_id[next(iter(self._by_id))]
        return number

    def failed(self, number: int, prompt: Hashable) -> None:
        """The turn failed: a request with the same prompt and no id is a retry of it."""
        self._failed = [*self._failed, (prompt, number)][-RECENT:]

    def _failed_with(self, prompt: Hashable) -> int | None:
        return next((number for failed, number in self._failed if failed == prompt), None)


@dataclass(slots=True)
class _Id:
    """The programs of one id, by ``program_id``, and how many turns arrived under the id."""

    programs: dict[str, ProgramState] = field(default_factory=dict)
    idle: dict[str, ProgramState] = field(default_factory=dict)
    """Programs without a request in the engine, the longest idle first."""
    turns_arrived: int = 0
    """Turns without retries: the number of the next new turn."""
    numbers: TurnNumbers = field(default_factory=TurnNumbers)
    made: int = 0


class Programs:
    """Programs by id.

    Args:
        limit: idle programs remembered; the longest idle are forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: dict[str, _Id] = {}
        self._programs: dict[str, ProgramState] = {}
        """By ``program_id``, the most recently used last."""
        self._resumed_turns: dict[str, int] = {}
        self._resumed_numbers: dict[str, TurnNumbers] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def resume_turns(self, next_turn: Mapping[str, int], numbers: Mapping[str, TurnNumbers]) -> None:
        """After a restart: continue the turn numbers of known ids where the record of the previous engine ends."""
        self._resumed_turns, self._resumed_numbers = dict(next_turn), dict(numbers)

    def of(self, program_id: str, namespace: str | None = None) -> list[ProgramState]:
        """All programs that the id stands for."""
        found = self._ids.get(_id_key(program_id, namespace))
        return list(found.programs.values()) if found is not None else []

    def siblings(self, program: ProgramState) -> list[ProgramState]:
        """All programs with this program's id, itself included."""
        found = self._ids.get(program.id_key)
        return list(found.programs.values()) if found is not None else []

    def find(self, program_id: str, prompt: Prompt, namespace: str | None = None) -> ProgramState | None:
        """The program that this request continues; None: it begins a new program."""
        named = self._ids.get(_id_key(program_id, namespace))
        continued = [program for program in named.idle.values() if continues(program, prompt)] if named else []
        return max(continued, key=lambda program: (program.mark or (-1, None))[0], default=None)

    def add(
        self, program_id: str, now_s: float, sequence: int, parent_id: str | None = None, namespace: str | None = None
    ) -> ProgramState:
        """A new program with that id."""
        parents = self.of(parent_id, namespace) if parent_id is not None else []
        key = _id_key(program_id, namespace)
        name = name_of(program_id, namespace)
        named = self._ids.get(key)
        if named is None:
            named = self._ids[key] = _Id(
                turns_arrived=self._resumed_turns.pop(name, 0),
                numbers=self._resumed_numbers.pop(name, TurnNumbers()),
            )
        named.made += 1
        program = ProgramState(
            program_id=key if named.made == 1 else f"{key}\0{named.made}",
            arrival_s=now_s,
            sequence=sequence,
            name=name,
            id_key=key,
            namespace=namespace,
            parent_id=parent_id,
            family=parents[-1].root if parents else None,
        )
        self._programs[program.program_id] = named.programs[program.program_id] = program
        return program

    def note_busy(self, program: ProgramState, turn_id: str | None, prompt: Hashable) -> tuple[int, bool]:
        """A turn of the program arrives. Returns the turn's number under the id, and whether it is a retry."""
        self._programs[program.program_id] = self._programs.pop(program.program_id)
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        number = named.numbers.arrived(turn_id, prompt, named.turns_arrived)
        again = number < named.turns_arrived
        named.turns_arrived = max(named.turns_arrived, number + 1)
        return number, again

    def note_failed(self, program: ProgramState, number: int, prompt: Hashable) -> None:
        """The turn with that number failed: a retry keeps the number."""
        named = self._ids.get(program.id_key)
        if named is not None:
            named.numbers.failed(number, prompt)

    def note_idle(self, program: ProgramState) -> None:
        """The last request of the program left the engine."""
        if not program.ended:
            self._ids[program.id_key].idle[program.program_id] = program

    def forget(self, program: ProgramState) -> None:
        """Forget the program: the next request with its id begins a new program."""
        program.ended = True
        if self._programs.pop(program.program_id, None) is None:
            return
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        del named.programs[program.program_id]
        if not named.programs:
            del self._ids[program.id_key]

    def superfluous(self, program: ProgramState) -> list[ProgramState]:
        """Programs to forget if they are idle: beyond the limit for this program's id, and for all ids."""
        idle = self._ids[program.id_key].idle
        beside = list(islice(idle.values(), max(0, len(idle) - IDLE_PROGRAMS_OF_AN_ID)))
        return beside + list(islice(self._programs.values(), max(0, len(self._programs) - self._limit)))


def continues(program: ProgramState, prompt: Prompt) -> bool:
    """Whether the prompt continues the program's last prompt."""
    if prompt.blocks is None:
        return True
    if program.mark is None:  # its last prompt did not fill a block
        return prompt.tokens > program.last_prompt_tokens
    index, block = program.mark
    return index < len(prompt.blocks) and prompt.blocks[index] == block


def mark_of(blocks: Sequence[Hashable] | None, shared_blocks: int) -> tuple[int, Hashable] | None:
    """The block that a prompt must repeat to continue this one: in the middle of the part that is not shared."""
    if not blocks:
        return None
    last = len(blocks) - 1
    index = min(last, shared_blocks + max(0, last - shared_blocks) // 2)
    return index, blocks[index]


def name_of(program_id: str, namespace: str | None) -> str:
    """The id as records have it: with several API keys, the digest of its key comes first."""
    return program_id if namespace is None else f"{namespace}:{program_id}"


def _id_key(program_id: str, namespace: str | None) -> str:
    """Ids of different API keys never collide: ids are printable, so neither part contains the separator."""
    return program_id if namespace is None else f"{namespace}\0{program_id}"
