"""Results as tables for other programs and for papers: CSV, Parquet, JSON, LaTeX, Markdown (pandas)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
from continuum_traces.names import near

from continuum_analysis.compare.intervals import NO_VALUE
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable, arm_table, columns
from continuum_analysis.records.misses import Return, cause_rows
from continuum_analysis.records.timeline import AnalysisError, ProgramTimes, TurnTimes
from continuum_analysis.report.experiment_facts import gpu_time
from continuum_analysis.sweep.capacity import Capacity

SUMMED = ("prompt_tokens", "output_tokens", "preemptions")
"""Of ``TurnTimes``, over a program's turns."""
TIMES = ("arrive_s", "start_s", "first_token_s", "finish_s", "wait_s", "ttft_s", "tpot_s", "itl_max_s")
COUNTS = ("prompt_tokens", "hit_tokens", "output_tokens", "reload_bytes", "preemptions")
TURN = (*TIMES, *COUNTS, "tool", "status")
"""Attributes of ``TurnTimes`` that are columns."""
PIN = ("turn", "since_s", "until_s", "ttl_s", "tokens", "reason", "delay_estimate_s", "eta")
"""Attributes of ``PinTimes`` that are columns."""
Summaries = Mapping[float | None, Summary]
"""Summaries by load (programs per second)."""


def summary_table(summaries: Summaries) -> pd.DataFrame:
    """Return one row for each load and policy: each metric's mean over seeds with its bounds, then the comparison."""
    return pd.DataFrame(
        [
            {"jps": jps, "policy": name}
            | {"seeds": len(arm.seeds)}
            | arm.row()
            | {"gpu_time": gpu_time(summary.manifest)}
            for jps, summary in summaries.items()
            for name, arm in summary.arms.items()
        ]
    )


def capacity_table(capacity: Capacity) -> pd.DataFrame:
    """Return one row for each number of agents at a time and policy: each metric's mean over seeds with its bounds."""
    return pd.DataFrame(
        [
            {"concurrency": number, "policy": name, "seeds": len(arm.seeds), **arm.row()}
            | {"seeds_within_level": sum(cell.kept for cell in group.cells if cell.policy == name)}
            for number, group in capacity.groups.items()
            for name, arm in group.policies.items()
        ]
    )


def summary_words(summaries: Summaries) -> pd.DataFrame:
    """Return the table that the command line shows, with cells as text and 95% intervals if there are several seeds."""
    shown = arm_table(summaries, with_jps=None not in summaries, with_intervals=True)
    gpu_times = [gpu_time(summary.manifest) for summary in summaries.values() for _ in summary.arms]
    return pd.DataFrame(list(shown.rows), columns=list(shown.headings)).assign(**{"GPU time": gpu_times})


def summary_numbers(summaries: Summaries) -> pd.DataFrame:
    """Return the table that the command line shows, for LaTeX: a cell is a number, without its unit or its interval.
    Intervals have columns of their own."""
    arms = [(jps, name, arm) for jps, summary in summaries.items() for name, arm in summary.arms.items()]
    made: list[tuple[str, list[str]]] = [("policy", [name for _, name, _ in arms])]
    if None not in summaries:
        made.insert(0, ("JPS", [f"{jps:g}" for jps, _, _ in arms]))
    for column in columns(summaries.values()):
        values = [column.value(arm) for _, _, arm in arms]
        texts = [NO_VALUE if value is None else column.form(value.mean) for value in values]
        unit = ", %" if any(text.endswith("%") for text in texts) else ""
        made.append((f"{column.heading}{unit}", [text.removesuffix("%") for text in texts]))
        if column.is_main and any(value and value.bounds for value in values):
            bounds = [value.bounds if value and value.bounds else (None, None) for value in values]
            for heading, ends in zip(("low", "high"), zip(*bounds, strict=True), strict=True):
                made.append((heading, [NO_VALUE if end is None else column.form(end) for end in ends]))
    if any(arm.overloaded for _, _, arm in arms):
        made.append(("overloaded", ["yes" if arm.overloaded else "no" for _, _, arm in arms]))
    made.append(("GPU time", [gpu_time(summary.manifest) for summary in summaries.values() for _ in summary.arms]))
    headings, cells = zip(*made, strict=True)
    return pd.DataFrame(list(zip(*cells, strict=True)), columns=list(headings))


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each run, with every metric."""
    return pd.DataFrame([{**_key(run), **run.metrics.values} for run in runs])


def misses_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each run and cause of a hit or a miss."""
    return pd.DataFrame([{**_key(run), **asdict(row)} for run in runs for row in cause_rows(run.metrics.facts.returns)])


def programs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each program, finished or not; its instants are on the scheduler's clock, its JCT on the
    client's."""
    return pd.DataFrame([{**_key(run), **_program(p)} for run in runs for p in run.metrics.facts.everyone])


def _program(program: ProgramTimes) -> dict[str, Any]:
    finished, seen = program.finished, bool(program.turns)
    return {
        **_columns(program, "program_id", "state"),
        "turns": len(program.turns),
        "arrive_s": program.arrive_s if seen else None,
        "jct_s": program.jct_s if finished else None,
        "bubble_s": program.bubble_s if seen else None,
        "requeue_s": program.requeue_s,
        **_columns(program, "worst_ttft_s", "alone_s", "slowdown"),
        "pins": len(program.pins),
        **{name: sum(getattr(turn, name) for turn in program.turns) for name in SUMMED},
    }


def turns_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each turn, with the cause of its hit or miss."""
    rows = []
    for run in runs:
        why = {(returned.program_id, returned.turn.index): returned for returned in run.metrics.facts.returns}
        for program in run.metrics.facts.everyone:
            for turn in program.turns:
                returned = why.get((program.program_id, turn.index))
                key = {**_key(run), "program_id": program.program_id, "turn": turn.index}
                rows.append({**key, **_columns(turn, *TURN), **_why(turn, returned)})
    return pd.DataFrame(rows)


def by_turn_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each policy and turn number, over all seeds: TTFT, queue wait and hits of the first turn, the
    second, and so on."""
    numbers = turns_table(runs).astype(dict.fromkeys(("ttft_s", "wait_s", "hit_tokens"), float))
    turns = numbers.groupby(["jps", "policy", "turn"], dropna=False)
    hits = turns[["hit_tokens", "prompt_tokens"]].sum(min_count=1)
    return pd.DataFrame(
        {
            "turns": turns.size(),
            "ttft_mean_s": turns["ttft_s"].mean(),
            "ttft_p95_s": turns["ttft_s"].quantile(0.95),
            "wait_mean_s": turns["wait_s"].mean(),
            "prefix_hit_ratio": hits["hit_tokens"] / hits["prompt_tokens"],
        }
    ).reset_index()


def _why(turn: TurnTimes, returned: Return | None) -> dict[str, Any]:
    if returned is None:
        cause = "first sight" if turn.index == 0 and turn.hit_tokens is not None else None
        return {"tool_before_s": None, "cause": cause, "reusable_tokens": None, "lost_tokens": None, "late_s": None}
    return {"tool_before_s": returned.tool_s, **_columns(returned, "cause", "reusable_tokens", "lost_tokens", "late_s")}


def pins_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return one row for each pin: its TTL, the policy's estimates, how it ended, and the tool time that followed."""
    rows = []
    for run in runs:
        tools = {
            (returned.program_id, returned.before.index): returned.tool_s for returned in run.metrics.facts.returns
        }
        for program in run.metrics.facts.everyone:
            name = program.program_id
            key = {**_key(run), "program_id": name}
            rows += [{**key, **_columns(pin, *PIN), "tool_s": tools.get((name, pin.turn))} for pin in program.pins]
    return pd.DataFrame(rows)


def _columns(row: object, *names: str) -> dict[str, Any]:
    """Return columns that have the names of the row's attributes."""
    return {name: getattr(row, name) for name in names}


def _key(run: Run) -> dict[str, Any]:
    return {"jps": run.manifest.workload.jps, "policy": run.arm, "seed": run.manifest.seed}


def table_text(table: pd.DataFrame, form: str) -> str:
    """Write the table as text: csv and json with all digits, markdown and latex with six."""
    if form == "csv":
        return table.to_csv(index=False, lineterminator="\n")
    if form == "json":
        return str(table.to_json(orient="records", indent=2, double_precision=9)) + "\n"
    if form == "markdown":
        return "\n".join(TextTable(list(table.columns), table.map(_text).to_numpy().tolist()).markdown()) + "\n"
    words = table.map(_text)
    columns = zip(*words.to_numpy().tolist(), strict=True)
    alignment = "".join("r" if all(map(_is_number, cells)) else "l" for cells in columns)
    return words.to_latex(index=False, escape=True, column_format=alignment or None)


def chosen(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return these columns of a table, in this order.

    Raises:
        AnalysisError: the table has no such column.
    """
    for name in names:
        if name not in table.columns:
            hint = near(name, table.columns)
            raise AnalysisError(f"--columns {name}: {hint}the first line of --format csv has all names")
    return table[list(names)]


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, or says that there is none."""
    try:
        return cell == NO_VALUE or float(cell.replace(",", "")) is not None
    except ValueError:
        return False


def _text(value: object) -> str:
    if value is None or value is pd.NA or value != value:
        return NO_VALUE
    return f"{value:.6g}" if isinstance(value, float) else str(value)


TABLES: Mapping[str, Callable[[Sequence[Run]], pd.DataFrame]] = {
    "runs": runs_table,
    "misses": misses_table,
    "programs": programs_table,
    "turns": turns_table,
    "by-turn": by_turn_table,
    "pins": pins_table,
}
"""Tables of runs, by their names on the command line."""
