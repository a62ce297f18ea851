"""Service level objectives: limits on a request's TTFT and TPOT and on a program's JCT, and how many keep them.

A request (a turn) keeps the SLO if it ended well, within every limit on requests. A program keeps it if it finished,
within the limit on its JCT, and all its requests kept theirs. Failed and unfinished ones never do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from continuum_analysis.compare.intervals import interval_text
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable
from continuum_analysis.metrics import Metric, Value
from continuum_analysis.records.facts import RunFacts
from continuum_analysis.records.timeline import AnalysisError, ProgramTimes, TurnTimes

UNLOADED_JPS = 1e-5
"""The rate of an unloaded run, about one program a day: programs hardly ever overlap."""
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_EQUAL = (("workload", "sha256"), ("hardware", "model"), ("hardware", "gpu"), ("hardware", "tensor_parallel"))
"""Fields of the manifest in which an unloaded run must agree with the others."""
_LIMIT = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<unit>ms|s|min|h|x)")


@dataclass(frozen=True, slots=True)
class Slo:
    """None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    jct_s: float | None = None
    jct_times: float | None = None
    """The limit on a program's JCT as a multiple of its JCT with no other program on the machine."""

    @property
    def of_requests(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


def read_slo(text: str) -> Slo:
    """The limits in ``ttft=2s,tpot=50ms,jct=10x``.

    >>> read_slo("tpot=50ms,jct=10x")
    Slo(ttft_s=None, tpot_s=0.05, jct_s=None, jct_times=10.0)

    Raises:
        AnalysisError: another form.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        found = _LIMIT.fullmatch(value)
        if name not in ("ttft", "tpot", "jct") or found is None or (found["unit"] == "x" and name != "jct"):
            raise AnalysisError(f"--slo {part}: expected ttft=2s, tpot=50ms, jct=300s or jct=10x (ms, s, min, h)")
        times = found["unit"] == "x"
        field = f"{name}_times" if times else f"{name}_s"
        if field in limits:
            raise AnalysisError(f"--slo {part}: {name} is given twice")
        limits[field] = float(found["number"]) * (1.0 if times else SECONDS[found["unit"]])
    return Slo(**limits)


def unloaded_jcts(alone: Sequence[Run]) -> dict[str, float]:
    """Each program's JCT with no other program on the machine: the mean over the runs at ``UNLOADED_JPS``."""
    times: dict[str, list[float]] = {}
    for run in alone:
        for program in run.metrics.facts.programs:
            times.setdefault(program.program_id, []).append(program.jct_s)
    return {name: sum(each) / len(each) for name, each in times.items()}


def with_slo(runs: Sequence[Run], slo: Slo, alone: Sequence[Run] = ()) -> list[Run]:
    """The runs, whose metrics now include those of the SLO.

    Args:
        alone: runs of the same programs that do not overlap; needed for a limit such as ``jct=10x``.

    Raises:
        AnalysisError: such a limit without those runs, or with runs of other programs.
    """
    unloaded_s: Mapping[str, float] = {}
    if slo.jct_times is not None:
        if not alone:
            raise AnalysisError(
                f"--slo jct={slo.jct_times:g}x: needs --unloaded DIR, a run of the same programs where each is alone "
                f"(--policy vllm --jps {UNLOADED_JPS:.5f})"
            )
        _check_alone(alone, runs)
        unloaded_s = unloaded_jcts(alone)
    rows = slo_metrics(slo, unloaded_s)
    return [_with_rows(run, rows) for run in runs]


def _with_rows(run: Run, rows: Sequence[Metric]) -> Run:
    values = {**run.metrics.values, **{row.name: row.compute(run.metrics.facts) for row in rows}}
    return replace(run, metrics=replace(run.metrics, values=values))


def _check_alone(alone: Sequence[Run], runs: Sequence[Run]) -> None:
    """Refuse unloaded runs of other programs, on another machine, or in which programs overlap."""
    known = unloaded_jcts(alone)
    for run in runs:
        _check_same(alone[0], run)
        missing = [p.program_id for p in run.metrics.facts.everyone if p.program_id not in known]
        if missing:
            where = f"--unloaded {alone[0].path}"
            raise AnalysisError(f"{where}: program {missing[0]!r} of {run.path} did not finish there")
    for run in alone:
        programs = run.metrics.facts.machine
        for before, after in pairwise(programs):
            if after.arrive_s < before.finish_s:
                raise AnalysisError(
                    f"--unloaded {run.path}: {after.program_id!r} arrives before {before.program_id!r} has finished, "
                    f"so it is not alone; play the programs at --jps {UNLOADED_JPS:.5f}"
                )


def _check_same(alone: Run, run: Run) -> None:
    for name, key in _EQUAL:
        theirs, ours = getattr(alone.manifest, name).get(key), getattr(run.manifest, name).get(key)
        if theirs != ours:
            raise AnalysisError(f"--unloaded {alone.path}: {name}.{key} is {theirs}, and {ours} in {run.path}")


def slo_metrics(slo: Slo, unloaded_s: Mapping[str, float]) -> tuple[Metric, ...]:
    """The SLO's rows of metrics; those of requests only where it limits requests."""
    judge = _Judge(slo, unloaded_s)
    of_requests = (
        Metric("slo_requests_share", "", "turns that kept the SLO / all turns", _share(judge.turns)),
        Metric("slo_requests_per_s", "1/s", "turns that kept the SLO / wall", _per_s(judge.turns)),
    )
    of_programs = (
        Metric("slo_programs_share", "", "programs that kept the SLO / all programs", _share(judge.programs)),
        Metric("slo_programs_per_s", "1/s", "programs that kept the SLO / wall", _per_s(judge.programs)),
    )
    return (*(of_requests if slo.of_requests else ()), *of_programs)


Count = tuple[int, int] | None
"""How many kept the SLO, and of how many; None where the records cannot say."""


def _share(count: Callable[[RunFacts], Count]) -> Callable[[RunFacts], Value]:
    def compute(facts: RunFacts) -> Value:
        found = count(facts)
        return found[0] / found[1] if found and found[1] else None

    return compute


def _per_s(count: Callable[[RunFacts], Count]) -> Callable[[RunFacts], Value]:
    def compute(facts: RunFacts) -> Value:
        found = count(facts)
        return found[0] / facts.wall_s if found and facts.wall_s > 0 else None

    return compute


@dataclass(frozen=True, slots=True)
class _Judge:
    """Says who kept the SLO."""

    slo: Slo
    unloaded_s: Mapping[str, float]

    def turns(self, facts: RunFacts) -> Count:
        turns = [turn for program in facts.everyone for turn in program.turns]
        known = any(turn.ttft_s is not None for turn in turns)
        return (sum(map(self._turn_keeps, turns)), len(turns)) if known else None

    def programs(self, facts: RunFacts) -> Count:
        if self.slo.of_requests and self.turns(facts) is None:
            return None
        return sum(map(self._program_keeps, facts.everyone)), len(facts.everyone)

    def _turn_keeps(self, turn: TurnTimes) -> bool:
        one_token = turn.client is not None and turn.gaps_between_tokens < 1  # has no TPOT, so keeps its limit
        in_pace = one_token or _within(turn.tpot_s, self.slo.tpot_s)
        return turn.ended_well and in_pace and _within(turn.ttft_s, self.slo.ttft_s)

    def _program_keeps(self, program: ProgramTimes) -> bool:
        if not program.finished or not _within(program.jct_s, self._limit_s(program)):
            return False
        return not self.slo.of_requests or all(map(self._turn_keeps, program.turns))

    def _limit_s(self, program: ProgramTimes) -> float | None:
        times = self.slo.jct_times
        limits = [] if times is None else [times * self.unloaded_s[program.program_id]]
        return min([*limits, *([] if self.slo.jct_s is None else [self.slo.jct_s])], default=None)


def _within(value_s: float | None, limit_s: float | None) -> bool:
    """What was not recorded keeps no limit."""
    return limit_s is None or (value_s is not None and value_s <= limit_s)


def slo_text(slo: Slo) -> str:
    """``TTFT <= 2 s, JCT <= 10 x alone``."""
    forms = {"ttft_s": "TTFT <= {:g} s", "tpot_s": "TPOT <= {:g} s", "jct_s": "JCT <= {:g} s"}
    forms["jct_times"] = "JCT <= {:g} x alone"
    given = [(each.name, getattr(slo, each.name)) for each in fields(slo)]
    return ", ".join(forms[name].format(value) for name, value in given if value is not None)


def slo_table(summary: Summary) -> TextTable:
    """How many requests and programs of each arm kept the SLO, over seeds."""
    forms = [row for row in _COLUMNS if row[0] in next(iter(summary.arms.values())).metrics]
    rows = [
        [name, *(interval_text(arm.metrics[metric], form.format) for metric, _, form in forms)]
        for name, arm in summary.arms.items()
    ]
    return TextTable(["policy", *(heading for _, heading, _ in forms)], rows)


_COLUMNS = (
    ("slo_requests_share", "requests that keep it", "{:.1%}"),
    ("slo_requests_per_s", "such requests/s", "{:.3f}"),
    ("slo_programs_share", "programs that keep it", "{:.1%}"),
    ("slo_programs_per_s", "such programs/s", "{:.4f}"),
)
