"""Service level objectives (SLOs): limits on a request's TTFT, TPOT and ITL and on a program's JCT.

A request (a turn) keeps the SLO if it ended well and within every limit on requests. A program keeps the SLO if it
finished within the limit on its JCT and all its requests kept the limits on requests. Requests and programs that failed
or did not finish never keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable, metric_column
from continuum_analysis.metrics import Metric, Value
from continuum_analysis.records.facts import RunFacts
from continuum_analysis.records.timeline import AnalysisError, ProgramTimes, TurnTimes

SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_LIMIT = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<unit>ms|s|min|h|x)")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of an SLO; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    """The limit on the longest gap between two output tokens of a turn."""
    jct_s: float | None = None
    jct_times: float | None = None
    """The limit on a program's JCT as a multiple of its JCT alone on the machine (``ProgramTimes.slowdown``)."""

    @property
    def of_requests(self) -> bool:
        return any(limit is not None for limit in (self.ttft_s, self.tpot_s, self.itl_s))


def read_slo(text: str) -> Slo:
    """Read limits such as ``ttft=2s,tpot=50ms,jct=10x``.

    >>> read_slo("tpot=50ms,jct=10x")
    Slo(ttft_s=None, tpot_s=0.05, itl_s=None, jct_s=None, jct_times=10.0)

    Raises:
        AnalysisError: the text has another form, or gives a limit twice.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        limit = _LIMIT.fullmatch(value)
        if name not in ("ttft", "tpot", "itl", "jct") or limit is None or (limit["unit"] == "x" and name != "jct"):
            forms = "ttft=2s, tpot=50ms, itl=200ms, jct=300s or jct=10x (ms, s, min, h)"
            raise AnalysisError(f"--slo {part}: expected {forms}")
        times = limit["unit"] == "x"
        field = f"{name}_times" if times else f"{name}_s"
        if field in limits:
            raise AnalysisError(f"--slo {part}: {name} is given twice")
        limits[field] = float(limit["number"]) * (1.0 if times else SECONDS[limit["unit"]])
    return Slo(**limits)


def with_slo(runs: Sequence[Run], slo: Slo) -> list[Run]:
    """Return the runs with the SLO's metrics added to their metrics.

    Raises:
        AnalysisError: the SLO has a limit such as ``jct=10x`` and the JCT of a program alone is not known, or it has a
            limit on ITL and the gaps between the tokens of a turn were not recorded.
    """
    rows = slo_metrics(slo)
    for run in runs:
        _check_known(run, slo)
    return [_with_rows(run, rows) for run in runs]


def _check_known(run: Run, slo: Slo) -> None:
    programs = run.metrics.facts.programs
    for program in programs if slo.jct_times is not None else ():
        if program.alone_s is None:
            raise AnalysisError(
                f"--slo jct={slo.jct_times:g}x: {run.path} does not say what program {program.program_id!r} takes "
                "alone; give --alone DIR, a run of the same programs one at a time"
            )
    turns = [turn for program in programs for turn in program.turns] if slo.itl_s is not None else []
    if any(turn.token_gaps_s is None and turn.gaps_between_tokens > 0 for turn in turns):
        raise AnalysisError(
            f"--slo itl: {run.path} has turns without the gaps between their tokens; give a run of --token-times"
        )


def _with_rows(run: Run, rows: Sequence[Metric]) -> Run:
    values = {**run.metrics.values, **{row.name: row.compute(run.metrics.facts) for row in rows}}
    return replace(run, metrics=replace(run.metrics, values=values))


def slo_metrics(slo: Slo) -> tuple[Metric, ...]:
    """Return the metrics of the SLO; those of requests only if the SLO has limits on requests."""
    judge = _Judge(slo)
    of_requests = _metrics("requests", "turns", judge.turns) if slo.of_requests else ()
    return (*of_requests, *_metrics("programs", "programs", judge.programs))


Count = tuple[int, int] | None
"""The number of turns or programs that kept the SLO, and the number of all; None if the records cannot say."""


def _metrics(name: str, things: str, count: Callable[[RunFacts], Count]) -> tuple[Metric, Metric]:
    """Return the share of things that kept the SLO, and their number per second."""

    def share(facts: RunFacts) -> Value:
        counted = count(facts)
        return counted[0] / counted[1] if counted and counted[1] else None

    def per_s(facts: RunFacts) -> Value:
        counted = count(facts)
        return counted[0] / facts.wall_s if counted and facts.wall_s > 0 else None

    return (
        Metric(f"slo_{name}_share", "", f"{things} that kept the SLO / all {things}", share),
        Metric(f"slo_{name}_per_s", "1/s", f"{things} that kept the SLO / wall", per_s),
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """Functions that count the turns and the programs that kept the SLO."""

    slo: Slo

    def turns(self, facts: RunFacts) -> Count:
        turns = [turn for program in facts.everyone for turn in program.turns]
        known = any(turn.ttft_s is not None for turn in turns)
        return (sum(map(self._turn_keeps, turns)), len(turns)) if known else None

    def programs(self, facts: RunFacts) -> Count:
        if self.slo.of_requests and self.turns(facts) is None:
            return None
        return sum(map(self._program_keeps, facts.everyone)), len(facts.everyone)

    def _turn_keeps(self, turn: TurnTimes) -> bool:
        # A turn of one token has neither TPOT nor ITL, so it keeps these limits.
        one_token = turn.client is not None and turn.gaps_between_tokens < 1
        in_pace = one_token or (_within(turn.tpot_s, self.slo.tpot_s) and _within(turn.itl_max_s, self.slo.itl_s))
        return turn.ended_well and in_pace and _within(turn.ttft_s, self.slo.ttft_s)

    def _program_keeps(self, program: ProgramTimes) -> bool:
        in_time = _within(program.jct_s if program.finished else None, self.slo.jct_s)
        in_proportion = _within(program.slowdown, self.slo.jct_times)
        requests = not self.slo.of_requests or all(map(self._turn_keeps, program.turns))
        return program.finished and in_time and in_proportion and requests


def _within(value: float | None, limit: float | None) -> bool:
    """Return whether the value keeps the limit. A value that was not recorded keeps no limit."""
    return limit is None or (value is not None and value <= limit)


def slo_text(slo: Slo) -> str:
    """Write an SLO in words, such as ``TTFT <= 2 s, JCT <= 10 x alone``."""
    forms = {"ttft_s": "TTFT <= {:g} s", "tpot_s": "TPOT <= {:g} s", "itl_s": "ITL <= {:g} s", "jct_s": "JCT <= {:g} s"}
    forms["jct_times"] = "JCT <= {:g} x alone"
    given = [(each.name, getattr(slo, each.name)) for each in fields(slo)]
    return ", ".join(forms[name].format(value) for name, value in given if value is not None)


def slo_table(summary: Summary) -> TextTable:
    """Return a table of the requests and programs of each arm that kept the SLO, as means over seeds."""
    known = next(iter(summary.arms.values())).metrics
    shown = [column for name, column in _COLUMNS.items() if name in known]
    rows = [[name, *(column.cell(arm, with_interval=True) for column in shown)] for name, arm in summary.arms.items()]
    return TextTable(["policy", *(column.heading for column in shown)], rows)


_COLUMNS = {
    name: metric_column(name, heading, form)
    for name, heading, form in (
        ("slo_requests_share", "requests that keep it", "{:.1%}"),
        ("slo_requests_per_s", "such requests/s", "{:.3f}"),
        ("slo_programs_share", "programs that keep it", "{:.1%}"),
        ("slo_programs_per_s", "such programs/s", "{:.4f}"),
    )
}
