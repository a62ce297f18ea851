"""The facts from which all metrics of a run are computed: programs, turns, gaps, pins and returning turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from continuum_traces.schema import LANES, REQUESTS, Manifest, Workload

from continuum_analysis.records.misses import Return, explain, limits_of
from continuum_analysis.records.percentiles import TokenGaps, pooled_gaps
from continuum_analysis.records.scheduler_time import RecordedSchedulerTime
from continuum_analysis.records.timeline import PinTimes, ProgramTimes, TurnTimes

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
"""An edge of the window that is a time."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The records of a run, selected and sorted once for all metrics."""

    programs: tuple[ProgramTimes, ...]
    """Finished programs in order of arrival."""
    everyone: tuple[ProgramTimes, ...]
    """All programs that count, finished or not: without those of a warm-up or a cool-down."""
    uncounted: tuple[ProgramTimes, ...]
    """Programs of a warm-up or a cool-down. They load the machine and are in no metric."""
    unfinished: tuple[str, ...]
    """Program ids."""
    failed: tuple[str, ...]
    """Program ids."""
    turns: tuple[TurnTimes, ...]
    """Turns with an answer, of programs that count, finished or not; where the warm-up is a time, those that were due
    after it or still waited when it ended."""
    waiting: tuple[TurnTimes, ...]
    """Turns of these programs that had no first token when the run ended. Their times are lower bounds."""
    running: tuple[TurnTimes, ...]
    """Turns of these programs that ran when the run ended. Their waits are known."""
    pins: tuple[PinTimes, ...]
    """Pins of all programs."""
    gaps: tuple[float, ...]
    """Seconds between a turn's finish and the next one's arrival, of finished programs; requests of one program that
    overlap have no gap."""
    returns: tuple[Return, ...]
    """Every turn but the first of each program, with the cause of its hit or miss."""
    token_gaps: TokenGaps
    """Gaps between the output tokens of ``turns``."""
    gpus: int | None
    """GPUs of all replicas; None where no manifest names them."""
    closed_loop: bool = False
    virtual: bool = False
    """The run was played in virtual time, in which no load generator is late."""
    replicas: int = 1
    """The larger of the numbers of replicas in the manifest and in the records."""
    scheduler_time: RecordedSchedulerTime | None = None
    window_s: tuple[float, float] | None = None
    """In a closed loop whose warm-up or cool-down is a time: the instants between which turns count if they are due."""

    @property
    def clock(self) -> Literal["client", "scheduler"]:
        """The clock of completion times and of the wall time: the client's if it recorded any turn."""
        return "client" if any(turn.client for p in self.everyone for turn in p.turns) else "scheduler"

    @property
    def wall_s(self) -> float:
        """Seconds from the first arrival to the last event of all programs, unfinished ones included; or of the window
        in which turns count."""
        return self._wall_s(self.everyone)

    @property
    def run_s(self) -> float:
        """The same with the warm-up and the cool-down: the time in which ``done_turns`` were done."""
        return self._wall_s(self.machine)

    def _wall_s(self, programs: Iterable[ProgramTimes]) -> float:
        if self.window_s is not None:
            return self.window_s[1] - self.window_s[0]
        begun = [program for program in programs if program.turns]
        records = [turn.client for program in begun for turn in program.turns if turn.client is not None]
        if records:
            return max(r.sent_s if r.finish_s is None else r.finish_s for r in records) - min(r.due_s for r in records)
        return max(p.finish_s for p in begun) - min(p.arrive_s for p in begun) if begun else 0.0

    @property
    def done_turns(self) -> list[TurnTimes]:
        """Turns of any program, finished or not, that got their answer during the run, or in the window."""
        return [turn for program in self.machine for turn in program.turns if turn.ended_well and self._in_window(turn)]

    @property
    def done_programs(self) -> list[ProgramTimes]:
        """Programs that finished during the run, or in the window."""
        return [program for program in self.machine if program.finished and self._in_window(program.turns[-1])]

    def in_window_s(self, program: ProgramTimes) -> float:
        """Return the seconds from a program's first request to its end, or to the last that is known of it, as far as
        they are in the window."""
        since_s = program.arrive_s if program.due_s is None else program.due_s
        until_s = since_s + (program.jct_s if program.finished else program.seen_until_s - program.arrive_s)
        first_s, last_s = self.window_s or (since_s, until_s)
        return max(0.0, min(until_s, last_s) - max(since_s, first_s))

    def _in_window(self, turn: TurnTimes) -> bool:
        """Return whether a turn ended in the window, on the client's clock."""
        return _is_in(self.window_s, turn.client.finish_s if turn.client is not None else None)

    @property
    def requests(self) -> tuple[TurnTimes, ...]:
        """All turns that count: with an answer, and those that waited or ran when the run ended."""
        return (*self.turns, *self.waiting, *self.running)

    @property
    def begun(self) -> list[ProgramTimes]:
        """Programs that count, finished or not, with a recorded turn."""
        return [program for program in self.everyone if program.turns]

    @property
    def machine(self) -> tuple[ProgramTimes, ...]:
        """Every program with a recorded turn, in order of arrival, warm-up and cool-down included."""
        return tuple(sorted((p for p in (*self.everyone, *self.uncounted) if p.turns), key=lambda p: p.arrive_s))


def facts_of(
    programs: Sequence[ProgramTimes],
    manifest: Manifest | None = None,
    scheduler_time: RecordedSchedulerTime | None = None,
) -> RunFacts:
    """Collect the facts of a run. Without a manifest the block size is derived from the hits, and GPUs are unknown."""
    manifest = manifest or Manifest()
    counted = [program for program in programs if program.counted]
    limits, window_s = limits_of(manifest, programs), _window_s(counted, manifest.workload)
    replicas = manifest.engine_options.replicas or 1
    tensor = manifest.hardware.tensor_parallel
    seen = len({turn.replica for program in programs for turn in program.turns} - {None})
    names = {program.program_id for program in counted}
    everyone = tuple(program for program in counted if _is_in(window_s, program.due_s))
    done = tuple(program for program in everyone if program.finished)
    _note_who_waits(programs)
    due = [turn for p in counted for turn in p.turns if _counts(turn, window_s)]
    turns = tuple(turn for turn in due if turn.ended_well)
    waiting = tuple(turn for turn in due if turn.left_s is not None or turn.left_in_queue_s is not None)
    noted = {id(turn) for turn in waiting}
    return RunFacts(
        programs=done,
        everyone=everyone,
        uncounted=tuple(program for program in programs if program not in everyone),
        unfinished=tuple(p.program_id for p in everyone if p.state == "unfinished"),
        failed=tuple(p.program_id for p in everyone if p.state == "failed"),
        turns=turns,
        waiting=waiting,
        running=tuple(turn for turn in due if not turn.ended and id(turn) not in noted),
        pins=tuple(pin for p in everyone for pin in p.pins),
        gaps=tuple(gap_s for p in done for _, gap_s in p.gaps()),
        returns=tuple(r for r in explain(programs, limits) if r.program_id in names and _counts(r.turn, window_s)),
        token_gaps=pooled_gaps(turns),
        gpus=None if tensor is None else tensor * (manifest.hardware.pipeline_parallel or 1) * replicas,
        closed_loop=manifest.workload.closed_loop,
        virtual=manifest.engine == "virtual",
        replicas=max(replicas, seen),
        scheduler_time=scheduler_time,
        window_s=window_s,
    )


def _window_s(programs: Sequence[ProgramTimes], workload: Workload) -> tuple[float, float] | None:
    warm, cool = (_SECONDS.fullmatch(edge or "") for edge in (workload.warm_up, workload.cool_down))
    requests, lanes = REQUESTS.fullmatch(workload.warm_up or ""), workload.cool_down == LANES
    if not workload.closed_loop or not (warm or cool or requests or lanes):
        return None
    number = int((workload.arrivals or "").split(":")[1])
    ends = sorted(t.client.finish_s for p in programs for t in p.turns if t.client and t.client.finish_s is not None)
    since_s = float(warm[1]) if warm else _nth(ends, number * int(requests[1])) if requests else 0.0
    over = all(program.state != "unfinished" for program in programs if program.turns)
    until_s = (None if over else workload.time_limit_s) or max(ends, default=0.0)
    if lanes:
        roots = [program for program in programs if program.started_by is None and program.turns]
        last = [p.turns[-1].client.finish_s for p in roots if p.finished and p.turns[-1].client is not None]
        until_s = min(until_s, _nth(sorted(s for s in last if s is not None), len(roots) - number + 1))
    return since_s, max(since_s, until_s - (float(cool[1]) if cool else 0.0))


def _nth(instants_s: Sequence[float], number: int) -> float:
    """Return the n-th of these instants, or infinity if there are fewer."""
    return instants_s[number - 1] if 1 <= number <= len(instants_s) else inf


def _note_who_waits(programs: Sequence[ProgramTimes]) -> None:
    """Note how long turns without a first token had waited when the run ended: at the last recorded event."""
    turns = [turn for program in programs for turn in program.turns]
    records = [turn.client for turn in turns if turn.client is not None]
    times = [[r.due_s, r.sent_s, r.first_token_s, r.finish_s] for r in records]
    events = [[turn.last_arrive_s, turn.start_s, turn.finish_s, *turn.preempted_s, *turn.resumed_s] for turn in turns]
    ends_s = [max((t for row in rows for t in row if t is not None), default=0.0) for rows in (times, events)]
    queues = any(turn.start_s is not None for turn in turns)
    for turn in turns:
        if turn.ended or turn.left_s is not None or turn.left_in_queue_s is not None:  # or noted before
            continue
        if queues and turn.start_s is None:
            turn.left_in_queue_s = ends_s[1] - turn.last_arrive_s
        if records and (turn.client is None or turn.client.first_token_s is None):
            turn.left_s = _left_s(turn, *ends_s)


def _left_s(turn: TurnTimes, client_end_s: float, scheduler_end_s: float) -> float:
    """Return a lower bound of the TTFT. A turn that was scheduled may have a first token that its client did not record
    any more, so that only its queue wait is certain."""
    if turn.start_s is not None:
        late_s = 0.0 if turn.client is None else turn.client.sent_s - turn.client.due_s
        return late_s + turn.start_s - turn.arrive_s
    return scheduler_end_s - turn.arrive_s if turn.client is None else client_end_s - turn.client.due_s


def _counts(turn: TurnTimes, window_s: tuple[float, float] | None) -> bool:
    """Return whether a turn was due in the window, or was due before and still waited when the window began."""
    record = turn.client
    if window_s is None or record is None:
        return True
    served_s = record.finish_s if record.first_token_s is None else record.first_token_s
    waited = served_s is None or served_s >= window_s[0]
    return record.due_s < window_s[1] and (record.due_s >= window_s[0] or waited)


def _is_in(window_s: tuple[float, float] | None, instant_s: float | None) -> bool:
    return window_s is None or instant_s is None or window_s[0] <= instant_s < window_s[1]
