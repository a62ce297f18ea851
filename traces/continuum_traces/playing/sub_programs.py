"""Sub-programs: programs that start when a turn of their parent has ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program

T = TypeVar("T")


class SubPrograms(Generic[T]):
    """Decides which programs start when a turn ends, and knows when a program and all that it started have ended.

    Args:
        plays: all programs of a run, each with its job. The program of a job with a ``parent_turn`` names the job of
            its parent.
    """

    def __init__(self, plays: Iterable[tuple[T, Job]]) -> None:
        self.roots: list[T] = []
        """The programs that no other program starts."""
        self._waiting: defaultdict[str, dict[int, list[tuple[T, float]]]] = defaultdict(dict)
        self._parents: dict[str, str] = {}
        self._open: Counter[str] = Counter()
        """For each root, how many programs that it started, or those started, have not ended."""
        for play, job in plays:
            program = job.program
            if program.parent_turn is None:
                self.roots.append(play)
            else:
                self._parents[job.program_id] = program.parent_id or ""
                of_turn = self._waiting[program.parent_id or ""].setdefault(program.parent_turn, [])
                of_turn.append((play, program.parent_gap_s))

    def started(self, program_id: str, turn: int, finish_s: float) -> list[tuple[T, float]]:
        """Return the programs that a turn starts, which ended at ``finish_s``, each with the second at which it
        starts."""
        waiting = self._waiting.get(program_id, {}).get(turn, ())
        if waiting:
            self._open[self._root_of(program_id)] += len(waiting)
        return [(play, finish_s + gap_s) for play, gap_s in waiting]

    def ended(self, program_id: str) -> bool:
        """Note that a program ended. Return whether its whole tree has: its root, and all that was started there.

        What the program's last turn starts must be asked for before.
        """
        root = self._root_of(program_id)
        self._open[root] -= 1
        return self._open[root] < 0  # the root itself is not counted when it begins

    def _root_of(self, program_id: str) -> str:
        while program_id in self._parents:
            program_id = self._parents[program_id]
        return program_id

    def least_gaps_s(self, program_id: str) -> Mapping[int, float]:
        """Return the seconds from each turn's end to the first sub-program that it starts. Turns that start none are
        absent."""
        return {turn: min(gap_s for _, gap_s in waiting) for turn, waiting in self._waiting.get(program_id, {}).items()}


def parents_of(programs: Sequence[Program]) -> dict[int, int]:
    """Return the place of the parent of each program that its parent starts, by the program's place.

    Absent are programs whose parent has no such turn, or is not among the programs, or that would start themselves.
    """
    places = {program.program_id: place for place, program in enumerate(programs)}
    parents: dict[int, int] = {}
    for place, program in enumerate(programs):
        parent = places.get(program.parent_id or "")
        turns = 0 if parent is None else len(programs[parent].turns)
        if parent is not None and program.parent_turn is not None and program.parent_turn < turns:
            parents[place] = parent
    return {place: parent for place, parent in parents.items() if _has_root(place, parents)}


def _has_root(place: int, parents: Mapping[int, int]) -> bool:
    seen = {place}
    while (above := parents.get(place)) is not None:
        if above in seen:
            return False
        seen.add(above)
        place = above
    return True
