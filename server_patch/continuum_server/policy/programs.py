"""Which program a request belongs to. An id is what a client says; a program is a conversation that goes on.

A request continues a program of its id where its prompt repeats at least half of what that program's last prompt had
of its own (what it shared with others from the start, a system prompt, proves nothing), and where none of that
program's requests is in the engine. Any other request begins a program of its own, as if it had come under a fresh id:
so nothing is gained by sharing an id, or by using an old one again (docs/server/promises.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from continuum_server.policy.facts import ProgramState
from continuum_server.policy.turn_numbers import TurnNumbers

IDLE_PROGRAMS_OF_AN_ID = 4
"""A conversation, and side conversations of it; of more, those idle for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What tells one conversation from another."""

    tokens: int = 0
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block, which stands for the prefix up to its end; None: not known, it continues anything."""


@dataclass(slots=True)
class _Id:
    """The programs of one id, by key, and how many turns arrived under it."""

    programs: dict[str, ProgramState] = field(default_factory=dict)
    idle: dict[str, ProgramState] = field(default_factory=dict)
    """Of these, those without a request in the engine, idle for longest first."""
    turns_arrived: int = 0
    """Turns, not tries of them: the number of the next new turn."""
    numbers: TurnNumbers = field(default_factory=TurnNumbers)
    made: int = 0


class Programs:
    """Programs by id.

    Args:
        limit: idle programs remembered; those idle for longest are forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: dict[str, _Id] = {}
        self._programs: dict[str, ProgramState] = {}
        """By key, the most recently used last."""
        self._resumed_turns: dict[str, int] = {}
        self._resumed_numbers: dict[str, TurnNumbers] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def resume_turns(self, next_turn: Mapping[str, int], numbers: Mapping[str, TurnNumbers]) -> None:
        """After a restart: turn numbers of known ids go on where the record of the engine before ends."""
        self._resumed_turns, self._resumed_numbers = dict(next_turn), dict(numbers)

    def of(self, program_id: str, namespace: str | None = None) -> list[ProgramState]:
        """All that the id names."""
        found = self._ids.get(_id_key(program_id, namespace))
        return list(found.programs.values()) if found is not None else []

    def siblings(self, program: ProgramState) -> list[ProgramState]:
        """All that have this program's id, itself too."""
        found = self._ids.get(program.id_key)
        return list(found.programs.values()) if found is not None else []

    def find(self, program_id: str, prompt: Prompt, namespace: str | None = None) -> ProgramState | None:
        """The program that this request continues; None: it begins a new one."""
        named = self._ids.get(_id_key(program_id, namespace))
        continued = [program for program in named.idle.values() if continues(program, prompt)] if named else []
        return max(continued, key=lambda program: (program.mark or (-1, None))[0], default=None)

    def add(
        self, program_id: str, now_s: float, sequence: int, parent_id: str | None = None, namespace: str | None = None
    ) -> ProgramState:
        """A new program of that id."""
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
        """A turn of it arrives; the turn's number under the program's id, and whether it is one of before again."""
        self._programs[program.program_id] = self._programs.pop(program.program_id)
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        number = named.numbers.arrived(turn_id, prompt, named.turns_arrived)
        again = number < named.turns_arrived
        named.turns_arrived = max(named.turns_arrived, number + 1)
        return number, again

    def note_failed(self, program: ProgramState, number: int, prompt: Hashable) -> None:
        """The turn of that number ended badly: should it come again, it keeps its number."""
        named = self._ids.get(program.id_key)
        if named is not None:
            named.numbers.failed(number, prompt)

    def note_idle(self, program: ProgramState) -> None:
        """Its last request left the engine."""
        if not program.ended:
            self._ids[program.id_key].idle[program.program_id] = program

    def forget(self, program: ProgramState) -> None:
        """Its next request, should one come, begins a new program."""
        program.ended = True
        if self._programs.pop(program.program_id, None) is None:
            return
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        del named.programs[program.program_id]
        if not named.programs:
            del self._ids[program.id_key]

    def superfluous(self, program: ProgramState) -> list[ProgramState]:
        """Programs to forget where they are idle: of this one's id, and of all, those beyond the limits."""
        idle = self._ids[program.id_key].idle
        beside = list(islice(idle.values(), max(0, len(idle) - IDLE_PROGRAMS_OF_AN_ID)))
        return beside + list(islice(self._programs.values(), max(0, len(self._programs) - self._limit)))


def continues(program: ProgramState, prompt: Prompt) -> bool:
    """Whether the prompt goes on where the program's last one ended."""
    if prompt.blocks is None:
        return True
    if program.mark is None:  # its last prompt did not fill a block
        return prompt.tokens > program.last_prompt_tokens
    index, block = program.mark
    return index < len(prompt.blocks) and prompt.blocks[index] == block


def mark_of(blocks: Sequence[Hashable] | None, shared_blocks: int) -> tuple[int, Hashable] | None:
    """The block that a prompt must repeat to continue this one: half way through the part that is its own."""
    if not blocks:
        return None
    last = len(blocks) - 1
    index = min(last, shared_blocks + max(0, last - shared_blocks) // 2)
    return index, blocks[index]


def name_of(program_id: str, namespace: str | None) -> str:
    """The id as records have it: with several API keys, behind the digest of its own."""
    return program_id if namespace is None else f"{namespace}:{program_id}"


def _id_key(program_id: str, namespace: str | None) -> str:
    """Ids of different keys never meet. Neither part can hold the separator: ids are printable."""
    return program_id if namespace is None else f"{namespace}\0{program_id}"
