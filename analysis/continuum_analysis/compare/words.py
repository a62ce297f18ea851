"""A summary as the sentence and the table that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BASELINE = "vllm"
SAME_TO_THE_EYE = 0.01
"""Ratios nearer to 1 than this are called equal, however narrow their interval."""

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("jct_mean_s", "JCT mean, s", "{:.1f}"),
    ("jct_p50_s", "P50", "{:.1f}"),
    ("jct_p90_s", "P90", "{:.1f}"),
    ("jct_p95_s", "P95", "{:.1f}"),
    ("jct_p99_s", "P99", "{:.1f}"),
    ("throughput_jobs_per_s", "jobs/s", "{:.4f}"),
    ("bubble_mean_s", "bubble, s", "{:.1f}"),
    ("prefix_hit_ratio", "prefix hit", "{:.1%}"),
    ("pin_hit_ratio", "pin hit", "{:.1%}"),
    ("ratio_to_vllm", "ratio to vllm", "{:.2f}"),
)
"""The table of the command line and of the report: key, heading, format."""
REPLICA_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("returns_elsewhere_share", "elsewhere", "{:.0%}"),
    ("replica_busiest", "busiest", "{:.2f}"),
)
"""What several replicas add to it."""


def columns(summaries: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    """The columns of a table of these summaries: those of replicas where there are any, the ratio with its baseline's
    name."""
    *most, (key, _, form) = COLUMNS
    seen = list(summaries)
    rows = [row for summary in seen for row in summary["policies"].values()]
    replicas = [column for column in REPLICA_COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    baselines = dict.fromkeys(summary.get("baseline") or BASELINE for summary in seen)
    return (*most, *replicas, (key, f"ratio to {' or '.join(baselines)}", form))


def table_rows(summary: Mapping[str, Any], shown: Sequence[tuple[str, str, str]] = COLUMNS) -> list[list[str]]:
    """One row a policy, cells formatted; a dash where there is no value."""
    return [
        [name, *(form.format(row[key]) if row.get(key) is not None else "-" for key, _, form in shown)]
        for name, row in summary["policies"].items()
    ]


def cell_with_interval(row: Mapping[str, Any], key: str, form: str) -> str:
    """A cell of the table with its 95% interval over seeds where there is one."""
    if row.get(key) is None:
        return "-"
    interval = row["intervals"].get(key) if key != "ratio_to_vllm" else row["ratio_to_vllm_interval"]
    if not interval or interval[1] - interval[0] < 1e-12:
        return form.format(row[key])
    return f"{form.format(row[key])} ({form.format(interval[0])} to {form.format(interval[1])})"


def verdict(summary: Mapping[str, Any]) -> str:
    """The result in one sentence, no stronger than the data; a second one where another policy did better. Behind
    several routers a sentence for each of ``continuum``'s."""
    policies, baseline = summary["policies"], summary.get("baseline") or BASELINE
    others = {name: row for name, row in policies.items() if name != baseline and row.get("ratio_to_vllm")}
    if baseline not in policies or not others:
        return "No comparison: the runs do not hold vllm and another policy on the same arrivals."
    best = max(others, key=lambda name: others[name]["ratio_to_vllm"])
    ours = {name: row for name, row in others.items() if row.get("policy", name) == "continuum"} or {best: others[best]}
    said = [_against_baseline(name, row, baseline, policies[baseline]) for name, row in ours.items()]
    return " ".join(said) + _better_one(max(ours, key=lambda name: ours[name]["ratio_to_vllm"]), others)


def _against_baseline(name: str, row: Mapping[str, Any], baseline: str, base: Mapping[str, Any]) -> str:
    facts = f"mean JCT {_seconds(row['jct_mean_s'])} against {_seconds(base['jct_mean_s'])}"
    ratio, interval = row["ratio_to_vllm"], row["ratio_to_vllm_interval"]
    seeds = len(row["paired_seeds"])
    if interval is None:
        return f"{name}: {ratio:.2f}x {baseline}'s speed ({facts}) on {_no_interval(row, seeds)}."
    low, high = interval
    spread = f"95% interval {low:.2f} to {high:.2f}, {seeds} seeds, paired"
    if max(abs(low - 1), abs(high - 1)) < SAME_TO_THE_EYE:
        return f"{name} and {baseline} are equal to within 1% here: {ratio:.2f}x ({spread}; {facts})."
    if low <= 1.0 <= high:
        return f"{name} and {baseline} cannot be told apart: {ratio:.2f}x ({spread}; {facts})."
    direction, factor = ("faster", ratio) if ratio > 1 else ("slower", 1 / ratio)
    if ratio < 1:
        spread = f"95% interval {1 / high:.2f} to {1 / low:.2f}, {seeds} seeds, paired"
    return f"{name} finished programs {factor:.2f}x {direction} than {baseline} ({spread}; {facts})."


def _no_interval(row: Mapping[str, Any], seeds: int) -> str:
    if seeds > 1:
        return f"{seeds} seeds that differ too much for an interval; use more seeds"
    within = row.get("ratio_to_vllm_within_one_arrival_sequence")
    spread = f", {within[0]:.2f} to {within[1]:.2f} within this one arrival sequence only" if within else ""
    return f"one arrival sequence{spread}; one seed is no proof, use --seeds 5 for an interval"


def _better_one(name: str, others: Mapping[str, Mapping[str, Any]]) -> str:
    """Said of a policy whose mean is lower by more than 1%; it claims no more than the mean."""
    best = max(others, key=lambda n: others[n]["ratio_to_vllm"])
    if others[best]["ratio_to_vllm"] < others[name]["ratio_to_vllm"] * (1 + SAME_TO_THE_EYE):
        return ""
    return f" {best}'s mean JCT was lower: {_seconds(others[best]['jct_mean_s'])}."


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
