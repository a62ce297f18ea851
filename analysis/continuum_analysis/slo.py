"""Service level objectives (SLOs): limits on requests, programs and metrics of runs.

A limit on a metric of a whole run, such as ``ttft_p95=5`` or ``output_tokens_s_p25=20``, is a level: a run keeps it or
does not. The other limits are on a request's TTFT, TPOT and ITL and on a program's JCT.

A request (a turn) keeps the SLO if it ended well and within every limit on requests. A program keeps the SLO if it
finished within the limit on its JCT and all its requests kept the limits on requests. Requests and programs that failed
or did not finish never keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from continuum_traces.names import near

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import Column, TextTable, arm_table
from continuum_analysis.metrics import BY_NAME, METRICS, Metric, Value
from continuum_analysis.records.facts import RunFacts
from continuum_analysis.records.timeline import AnalysisError, ProgramTimes, TurnTimes

OF_EACH = ("ttft", "tpot", "itl", "jct")
"""Limits on each request or program."""
UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "x": 1.0}
_LIMIT = re.compile(r"(?P<name>[a-z]\w*)\s*=\s*(?P<number>\d+(\.\d*)?|\.\d+)(?P<unit>ms|s|min|h|x|)")
FORMS = (
    "ttft=2s, tpot=50ms, itl=200ms, jct=300s or jct=10x (ms, s, min, h), or a metric of runs, such as ttft_p95=5s or "
    "output_tokens_s_p25=20"
)
MOST_BROKEN = 0.05
"""A run keeps limits on requests and programs if no larger share of them breaks the limits."""


@dataclass(frozen=True, slots=True)
class Level:
    """A limit on a metric of a run: at most, or at least where higher values are better."""

    metric: str
    limit: float

    def keeps(self, value: Value) -> bool:
        """Return whether a value keeps the limit. A value that is not known keeps none."""
        if value is None:
            return False
        return value >= self.limit if BY_NAME[self.metric].better == "higher" else value <= self.limit

    @property
    def text(self) -> str:
        """The limit in words, such as ``TTFT P95 <= 5 s``."""
        metric = BY_NAME[self.metric]
        sign = ">=" if metric.better == "higher" else "<="
        return f"{metric_words(self.metric)} {sign} {self.limit:g}{' s' if metric.unit == 's' else ''}"


def metric_words(name: str) -> str:
    """Return the name of a metric as a person writes it, such as ``TTFT P95``."""
    words = name.removesuffix("_s" if BY_NAME[name].unit == "s" else "").split("_")
    upper = ("ttft", "tpot", "itl", "jct", *(f"p{q}" for q in range(100)))
    text = " ".join(word.upper() if word in upper else word for word in words)
    return text.replace("tokens s", "tokens/s")


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
    levels: tuple[Level, ...] = ()

    def kept_by(self, facts: RunFacts, values: Mapping[str, Value]) -> bool:
        """Return whether a run keeps all levels, and all but ``MOST_BROKEN`` of its requests and programs the rest."""
        judged = []
        if self.of_requests:
            judged.append(_turns(self, facts))
        if self.of_requests or self.of_programs:
            judged.append(_programs(self, facts))
        enough = all(kept and sum(kept) >= (1 - MOST_BROKEN) * len(kept) for kept in judged)
        return enough and all(level.keeps(values[level.metric]) for level in self.levels)

    @property
    def of_programs(self) -> bool:
        return self.jct_s is not None or self.jct_times is not None

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
    levels: dict[str, Level] = {}
    for part in text.split(","):
        limit = _LIMIT.fullmatch(part.strip())
        if limit is None or (limit["unit"] == "x" and limit["name"] != "jct"):
            raise AnalysisError(f"--slo {part}: expected {FORMS}")
        name, number = limit["name"], float(limit["number"]) * UNITS[limit["unit"]]
        field = f"{name}_times" if limit["unit"] == "x" else f"{name}_s"
        if field in limits or name in levels:
            raise AnalysisError(f"--slo {part}: {name} is given twice")
        if name in OF_EACH:
            limits[field] = number
        else:
            levels[name] = _level(part, name, number, limit["unit"])
    return Slo(**limits, levels=tuple(levels.values()))


def _level(part: str, name: str, number: float, unit: str) -> Level:
    """Return the limit on the metric of this name, with or without the unit at its end."""
    metric = next((BY_NAME[each] for each in (name, f"{name}_s") if each in BY_NAME), None)
    if metric is None or metric.better == "neither":
        known = [each.name.removesuffix("_s") for each in METRICS if each.better != "neither"]
        raise AnalysisError(f"--slo {part}: {near(name, known)}expected {FORMS}")
    if unit and metric.unit != "s":
        raise AnalysisError(f"--slo {part}: {name} is no time")
    return Level(metric.name, number)


def with_slo(runs: Sequence[Run], slo: Slo) -> list[Run]:
    """Return the runs with the SLO's metrics added to their metrics.

    Raises:
        AnalysisError: the SLO has a limit such as ``jct=10x`` and the JCT of a program alone is not known, or it has a
            limit on ITL and the gaps between the tokens of a turn were not recorded.
    """
    rows, judged = slo_metrics(slo), []
    for run in runs:
        _check_known(run, slo)
        values = run.metrics.values | {row.name: row.compute(run.metrics.facts) for row in rows}
        judged.append(replace(run, metrics=replace(run.metrics, values=values)))
    return judged


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
            f"--slo itl: {run.path} has turns without the gaps between their tokens; give a run of --token-times, "
            "against a server that says how many tokens a chunk has"
        )


def slo_metrics(slo: Slo) -> tuple[Metric, ...]:
    """Return the metrics of the SLO; those of requests only if the SLO has limits on requests."""
    of_requests = _metrics("requests", "turns", 3, partial(_turns, slo)) if slo.of_requests else ()
    of_programs = slo.of_requests or slo.of_programs or not slo.levels
    programs = _metrics("programs", "programs", 4, partial(_programs, slo)) if of_programs else ()
    return (*of_requests, *programs, *((_levels_metric(slo),) if slo.levels else ()))


def _levels_metric(slo: Slo) -> Metric:
    def kept(facts: RunFacts) -> Value:
        return all(level.keeps(BY_NAME[level.metric].compute(facts)) for level in slo.levels) + 0.0

    return Metric("slo_levels_share", "share", 0, "higher", "1 if the run keeps every level, else 0", kept)


Kept = Sequence[bool] | None
"""Whether each turn or program kept the SLO; None if the records cannot say."""


def _metrics(name: str, things: str, digits: int, judge: Callable[[RunFacts], Kept]) -> tuple[Metric, Metric]:
    """Return the share of things that kept the SLO, and their number per second."""

    def share(facts: RunFacts) -> Value:
        kept = judge(facts)
        return sum(kept) / len(kept) if kept else None

    def per_s(facts: RunFacts) -> Value:
        kept = judge(facts)
        return sum(kept) / facts.wall_s if kept is not None and facts.wall_s > 0 else None

    return (
        Metric(f"slo_{name}_share", "share", 1, "higher", f"{things} that kept the SLO / all {things}", share),
        Metric(f"slo_{name}_per_s", "1/s", digits, "higher", f"{things} that kept the SLO / wall", per_s),
    )


def _turns(slo: Slo, facts: RunFacts) -> Kept:
    turns = [turn for program in facts.everyone for turn in program.turns]
    return [_turn_keeps(slo, turn) for turn in turns] if any(turn.ttft_s is not None for turn in turns) else None


def _programs(slo: Slo, facts: RunFacts) -> Kept:
    unknown = slo.of_requests and _turns(slo, facts) is None
    return None if unknown else [_program_keeps(slo, program) for program in facts.everyone]


def _turn_keeps(slo: Slo, turn: TurnTimes) -> bool:
    # A turn of one token has neither TPOT nor ITL, so it keeps these limits.
    one_token = turn.client is not None and turn.gaps_between_tokens < 1
    in_pace = one_token or (_within(turn.tpot_s, slo.tpot_s) and _within(turn.itl_max_s, slo.itl_s))
    return turn.ended_well and in_pace and _within(turn.ttft_s, slo.ttft_s)


def _program_keeps(slo: Slo, program: ProgramTimes) -> bool:
    in_time = program.finished and _within(program.jct_s, slo.jct_s) and _within(program.slowdown, slo.jct_times)
    return in_time and not (slo.of_requests and not all(_turn_keeps(slo, turn) for turn in program.turns))


def _within(value: float | None, limit: float | None) -> bool:
    """Return whether the value keeps the limit. A value that was not recorded keeps no limit."""
    return limit is None or (value is not None and value <= limit)


def slo_text(slo: Slo) -> str:
    """Write an SLO in words, such as ``TTFT <= 2 s, JCT <= 10 x alone, TTFT P95 <= 5 s``."""
    limits = [
        (*name.split("_"), getattr(slo, name)) for name in (each.name for each in fields(slo)) if name != "levels"
    ]
    units = {"s": "s", "times": "x alone"}
    each = [f"{name.upper()} <= {value:g} {units[unit]}" for name, unit, value in limits if value is not None]
    return ", ".join([*each, *(level.text for level in slo.levels)])


HEADINGS = {
    "slo_requests_share": "requests that keep it",
    "slo_requests_per_s": "such requests/s",
    "slo_programs_share": "programs that keep it",
    "slo_programs_per_s": "such programs/s",
    "slo_levels_share": "runs that keep the levels",
}


def slo_table(summary: Summary, slo: Slo) -> TextTable:
    """Return a table of the requests and programs of each arm that kept the SLO, as means over seeds."""
    columns = [Column(metric.name, HEADINGS[metric.name], metric.text) for metric in slo_metrics(slo)]
    return arm_table({None: summary}, columns, with_intervals=True)
