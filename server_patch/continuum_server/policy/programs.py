"""Assign requests to programs. Clients choose program ids freely, but a program is one conversation.

A request continues a program with its id under two conditions. First, its prompt repeats at least half of the program's
own part of the last prompt. A prefix that other programs had too, such as a system prompt, is not the program's own.
Second, no request of that program is in the engine. Any other request begins a new program, as if its id were new. So a
client gains nothing if it shares an id or uses an old one again (docs/server/promises.md).

A program keeps its seniority as long as it goes on. It also does if its history was compacted: its prompt is at most
half of its last context and begins as before, and it is the only one with its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter

from continuum_server.policy.facts import ProgramState
from continuum_server.policy.recognise import Prompt, Recogniser

IDLE_PROGRAMS_OF_AN_ID = 4
"""Number of idle programs remembered per id: a conversation and its side conversations. The longest idle are forgotten
first."""
REMEMBERED = 8
"""Number of turn ids and of failed turns remembered per program. The oldest are forgotten first."""


class TurnNumbers:
    """The turn numbers of the requests with one program id.

    A request whose ``turn_id`` was used before is a retry of that turn. A request without ``turn_id`` is a retry of a
    failed turn with an equal prompt. Any other request is the next turn.
    """

    __slots__ = ("_by_id", "_failed", "following")

    def __init__(self) -> None:
        self.following = 0
        """The number of the next new turn."""
        self._by_id: dict[str, int] = {}
        self._failed: list[tuple[Hashable, int]] = []

    def arrived(self, turn_id: str | None, prompt: Hashable) -> int:
        """Return the number of a request that arrives now.

        Args:
            turn_id: the turn id that the client sent.
            prompt: a value that is equal for equal prompts.
        """
        earlier = self._failed_with(prompt) if turn_id is None else self._by_id.get(turn_id)
        number = self.following if earlier is None else earlier
        self.note(turn_id, number)
        return number

    def note(self, turn_id: str | None, number: int) -> None:
        """Note that the turn with this number arrives."""
        self.following = max(self.following, number + 1)
        self._failed = [entry for entry in self._failed if entry[1] != number]
        if turn_id is not None:
            self._by_id.pop(turn_id, None)
            self._by_id[turn_id] = number
            if len(self._by_id) > REMEMBERED:
                del self._by_id[next(iter(self._by_id))]

    def failed(self, number: int, prompt: Hashable) -> None:
        """Note that the turn failed. A later request with an equal prompt and no turn id is a retry of this turn."""
        self._failed = [*self._failed, (prompt, number)][-REMEMBERED:]

    def _failed_with(self, prompt: Hashable) -> int | None:
        return next((number for failed, number in self._failed if failed == prompt), None)


@dataclass(slots=True)
class _Id:
    """All programs with one id, and the turns that arrived with this id."""

    programs: dict[str, ProgramState] = field(default_factory=dict)
    """By ``ProgramState.program_id``."""
    idle: dict[str, ProgramState] = field(default_factory=dict)
    """The programs without a request in the engine, the longest idle first."""
    numbers: TurnNumbers = field(default_factory=TurnNumbers)
    made: int = 0
    """Number of programs that ever had this id."""


class Programs:
    """Programs by id.

    Args:
        limit: number of idle programs remembered. The longest idle are forgotten first.
        block_size: number of tokens that one block hash stands for.
    """

    def __init__(self, limit: int, block_size: int) -> None:
        self.prompts = Recogniser(block_size)
        """The prompts of the programs that no id names."""
        self.recognised: Counter[str | None] = Counter()
        """Number of programs by ``ProgramState.recognised_by``. Only positive counts have a meaning."""
        self.block_size = block_size
        self._limit = limit
        self._ids: dict[str, _Id] = {}
        self._programs: dict[str, ProgramState] = {}
        """By ``program_id``, the most recently used last."""
        self._resumed: dict[str, TurnNumbers] = {}
        self._counted: dict[ProgramState, str] = {}
        """The value of ``recognised_by`` under which each program is counted."""

    def __len__(self) -> int:
        return len(self._programs)

    def latest(self) -> Iterator[ProgramState]:
        """Yield all programs, the one that sent a request last first."""
        return reversed(self._programs.values())

    def resume_turns(self, numbers: Mapping[str, TurnNumbers]) -> None:
        """Continue the turn numbers of an earlier engine, which are given by the programs' names."""
        self._resumed = dict(numbers)

    def turn_numbers(self) -> dict[str, TurnNumbers]:
        """Return what ``resume_turns`` takes."""
        living = (named for named in self._ids.values() if named.programs)
        return self._resumed | {next(iter(named.programs.values())).name: named.numbers for named in living}

    def of(self, program_id: str, namespace: str | None = None) -> list[ProgramState]:
        """Return all programs with this id."""
        return self.with_key(_id_key(program_id, namespace))

    def with_key(self, key: str) -> list[ProgramState]:
        """Return all programs with this ``id_key``."""
        named = self._ids.get(key)
        return list(named.programs.values()) if named is not None else []

    def find(self, program_id: str, prompt: Prompt, namespace: str | None = None) -> ProgramState | None:
        """Return the program that a request with this id and prompt continues; None: it begins a new program."""
        named = self._ids.get(_id_key(program_id, namespace))
        if named is None:
            return None
        idle = [(kept_of(program, prompt), program) for program in named.idle.values()]
        continued = [
            (kept.blocks, program)
            for kept, program in idle
            if kept.goes_on and (not kept.compacted or len(named.programs) == 1)
        ]
        return max(continued, key=itemgetter(0))[1] if continued else None

    def add(
        self,
        program_id: str,
        now_s: float,
        sequence: int,
        parent: ProgramState | None = None,
        namespace: str | None = None,
    ) -> ProgramState:
        """Add a new program with this id."""
        key = _id_key(program_id, namespace)
        name = name_of(program_id, namespace)
        named = self._ids.get(key)
        if named is None:
            named = self._ids[key] = _Id(numbers=self._resumed.pop(name, TurnNumbers()))
        named.made += 1
        program = ProgramState(
            program_id=key if named.made == 1 else f"{key}\0{named.made}",
            arrival_s=now_s,
            sequence=sequence,
            name=name,
            id_key=key,
            namespace=namespace,
            family=parent.root if parent is not None else None,
        )
        self._programs[program.program_id] = named.programs[program.program_id] = program
        return program

    def note_busy(self, program: ProgramState, turn_id: str | None, prompt: Hashable) -> tuple[int, bool]:
        """Note that a turn of the program arrives. Return the turn's number, and whether it is a retry."""
        self._count(program, program.recognised_by)
        self._programs[program.program_id] = self._programs.pop(program.program_id)
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        following = named.numbers.following
        number = named.numbers.arrived(turn_id, prompt)
        return number, number < following

    def note_branch(self, branch: ProgramState, program: ProgramState, turns: int) -> None:
        """Note that the last turns of an idle program were another program's, which has just been added."""
        branch.turns_arrived = branch.turns_finished = turns
        program.turns_arrived -= turns
        program.turns_finished = max(0, program.turns_finished - turns)
        branch.recognised_by, branch.last_tool = program.recognised_by, program.last_tool
        branch.prompt_tokens, branch.context_tokens = program.prompt_tokens, program.context_tokens
        branch.last_prompt = replace(program.last_prompt, left_at=None, left=None)
        self._count(branch, branch.recognised_by)
        self.note_idle(branch)

    def note_failed(self, program: ProgramState, number: int, prompt: Hashable) -> None:
        """Note that the turn with this number failed. Its retry gets the same number."""
        named = self._ids.get(program.id_key)
        if named is not None:
            named.numbers.failed(number, prompt)

    def note_idle(self, program: ProgramState) -> None:
        """Note that the program's last request left the engine."""
        if not program.ended:
            self._ids[program.id_key].idle[program.program_id] = program

    def forget(self, program: ProgramState) -> None:
        """Forget the program. The next request with its id begins a new program."""
        program.ended = True
        if self._programs.pop(program.program_id, None) is None:
            return
        named = self._ids[program.id_key]
        named.idle.pop(program.program_id, None)
        self._count(program, None)
        self.prompts.forget(program)
        del named.programs[program.program_id]
        if not named.programs:
            del self._ids[program.id_key]

    def _count(self, program: ProgramState, by: str | None) -> None:
        self.recognised[self._counted.pop(program, None)] -= 1
        self.recognised[by] += 1
        if by is not None:
            self._counted[program] = by

    def superfluous(self, program: ProgramState) -> list[ProgramState]:
        """Return programs beyond the limits for this program's id and for all ids, which the caller forgets if idle."""
        idle = self._ids[program.id_key].idle
        beside = list(islice(idle.values(), max(0, len(idle) - IDLE_PROGRAMS_OF_AN_ID)))
        return beside + list(islice(self._programs.values(), max(0, len(self._programs) - self._limit)))


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of a program's last prompt another prompt repeats."""

    goes_on: bool
    """It repeats at least half of the program's own part, or the history was compacted."""
    blocks: int
    """Number of leading blocks that it certainly repeats; -1: unknown."""
    compacted: bool = False
    """It begins as the program's last prompt and has at most half the tokens of its last context."""


EIGHTHS = (8, 7, 6, 5, 4)
"""The marks of a prompt stand at these eighths of the program's own part."""


def kept_of(program: ProgramState, prompt: Prompt) -> Kept:
    """Return how much of the program's last prompt ``prompt`` repeats."""
    if prompt.blocks is None:
        return Kept(goes_on=True, blocks=-1)
    last = program.last_prompt
    if not last.marks:  # it did not fill a block
        return Kept(prompt.tokens > last.tokens, 0)
    for index, block in last.marks:
        if index < len(prompt.blocks) and prompt.blocks[index] == block:
            return Kept(goes_on=True, blocks=index + 1)
    compacted = bool(prompt.blocks) and prompt.blocks[0] == last.head and 2 * prompt.tokens <= program.context_tokens
    return Kept(compacted, 0, compacted)


def marks_of(blocks: Sequence[Hashable] | None, shared_blocks: int) -> tuple[tuple[int, Hashable], ...]:
    """Return the blocks, with their indices, by which a later prompt is compared with this one: the last one first.

    A block's hash identifies the whole prefix up to the block, so a prompt with the same block there repeats all of it.
    """
    if not blocks:
        return ()
    last = len(blocks) - 1
    own_blocks = max(0, last - shared_blocks)
    indices = [min(last, shared_blocks + own_blocks * eighths // 8) for eighths in EIGHTHS]
    return tuple((index, blocks[index]) for index in indices)


def name_of(program_id: str, namespace: str | None) -> str:
    """Return the id as records contain it. If the server has several API keys, the digest of the key comes first."""
    return program_id if namespace is None else f"{namespace}:{program_id}"


def _id_key(program_id: str, namespace: str | None) -> str:
    """Return a key that differs for different API keys. Ids are printable, so neither part contains the separator."""
    return program_id if namespace is None else f"{namespace}\0{program_id}"
