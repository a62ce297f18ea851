"""The facts from which all metrics of a run are computed: programs, turns, gaps, pins and returning turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from continuum_traces.schema import Manifest

from continuum_analysis.records.misses import Return, explain, limits_of
from continuum_analysis.records.percentiles import TokenGaps, pooled_gaps
from continuum_analysis.records.scheduler_time import RecordedSchedulerTime
from continuum_analysis.records.timeline import PinTimes, ProgramTimes, TurnTimes


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The records of a run, selected and sorted once for all metrics."""

    programs: tuple[ProgramTimes, ...]
    """Finished programs in order of arrival."""
    everyone: tuple[ProgramTimes, ...]
    """All programs, finished or not, without those of a warm-up or a cool-down."""
    uncounted: tuple[ProgramTimes, ...]
    """Programs of a warm-up or a cool-down. They load the machine and are in no metric."""
    unfinished: tuple[str, ...]
    """Program ids."""
    failed: tuple[str, ...]
    """Program ids."""
    turns: tuple[TurnTimes, ...]
    """Turns of finished programs."""
    pins: tuple[PinTimes, ...]
    """Pins of all programs."""
    gaps: tuple[float, ...]
    """Seconds between a turn's finish and the next one's arrival, of finished programs; requests of one program that
    overlap have no gap."""
    returns: tuple[Return, ...]
    """Every turn but the first of each program, with the cause of its hit or miss."""
    block_tokens: int
    gpus: int | None
    """GPUs of all replicas; None where no manifest names them."""
    virtual: bool = False
    """The run was played in virtual time, in which no load generator is late."""
    replicas: int = 1
    """The larger of the numbers of replicas in the manifest and in the records."""
    scheduler_time: RecordedSchedulerTime | None = None
    token_gaps: TokenGaps | None = None
    """Gaps between the tokens of finished programs; None if the gaps of some turn were not recorded."""

    @property
    def clock(self) -> Literal["client", "scheduler"]:
        """The clock of completion times and of the wall time: the client's if it recorded any turn."""
        return "client" if any(turn.client for p in self.everyone for turn in p.turns) else "scheduler"

    @property
    def wall_s(self) -> float:
        """Seconds from the first arrival to the last event of all programs, unfinished ones included."""
        records = [turn.client for p in self.everyone for turn in p.turns if turn.client is not None]
        if records:
            return max(r.sent_s if r.finish_s is None else r.finish_s for r in records) - min(r.due_s for r in records)
        seen = [p for p in self.everyone if p.turns]
        return max(p.finish_s for p in seen) - min(p.arrive_s for p in seen) if seen else 0.0

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
    everyone = tuple(program for program in programs if program.counted)
    limits = limits_of(manifest, programs)
    counted = {program.program_id for program in everyone}
    done = tuple(program for program in everyone if program.finished)
    return RunFacts(
        programs=done,
        everyone=everyone,
        uncounted=tuple(program for program in programs if not program.counted),
        unfinished=tuple(p.program_id for p in everyone if p.state == "unfinished"),
        failed=tuple(p.program_id for p in everyone if p.state == "failed"),
        turns=tuple(turn for p in done for turn in p.turns),
        pins=tuple(pin for p in everyone for pin in p.pins),
        gaps=tuple(gap_s for p in done for _, gap_s in p.gaps()),
        returns=tuple(returned for returned in explain(programs, limits) if returned.program_id in counted),
        block_tokens=limits.block_tokens,
        gpus=_gpus(manifest),
        virtual=manifest is not None and manifest.engine == "virtual",
        replicas=max(_replicas(manifest), _replicas_seen(programs)),
        scheduler_time=scheduler_time,
        token_gaps=pooled_gaps([turn for p in done for turn in p.turns]),
    )


def _gpus(manifest: Manifest | None) -> int | None:
    if manifest is None or manifest.hardware.tensor_parallel is None:
        return None
    return manifest.hardware.tensor_parallel * (manifest.hardware.pipeline_parallel or 1) * _replicas(manifest)


def _replicas_seen(programs: Sequence[ProgramTimes]) -> int:
    return len({turn.replica for program in programs for turn in program.turns} - {None})


def _replicas(manifest: Manifest | None) -> int:
    if manifest is None:
        return 1
    return manifest.hardware.replicas or manifest.engine_options.replicas or 1
