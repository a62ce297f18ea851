"""Conditions of --fail-if: what they mean, and that intervals decide."""

from __future__ import annotations

from pathlib import Path

from continuum_analysis.compare.conditions import Condition, Pair
from continuum_analysis.compare.runs import load_all
from recorded_runs import write_recorded


def pair(folder: Path, ours: list[float], theirs: list[float]) -> Pair:
    """One program a seed, with these completion times."""
    for seed, (mine, base) in enumerate(zip(ours, theirs, strict=True)):
        write_recorded(folder / "new" / f"s{seed}", "continuum", seed, [mine])
        write_recorded(folder / "old" / f"s{seed}", "vllm", seed, [base])
    return Pair("continuum", load_all([folder / "new"]), load_all([folder / "old"]))


def test_the_near_end_of_the_interval_decides(tmp_path: Path) -> None:
    """Ratios 1.2 on average, by seed 1.0 to 1.4: 1.05 is within the interval."""
    noisy = pair(tmp_path, [10.0, 12.0, 14.0], [10.0, 10.0, 10.0])
    assert not Condition("jct_mean_ratio > 1.05").apply(noisy).failed
    assert Condition("jct_mean_ratio > 1.05", only_estimates=True).apply(noisy).failed
    assert not Condition("jct_mean_ratio < 1.3").apply(noisy).failed
    assert Condition("jct_mean_ratio < 4").apply(noisy).failed
    assert "jct_mean_ratio 1.2 (" in Condition("jct_mean_ratio > 1.05").apply(noisy).compared


def test_a_sure_difference_fails(tmp_path: Path) -> None:
    sure = pair(tmp_path, [12.0, 12.1, 12.2], [10.0, 10.1, 10.2])
    assert Condition("jct_mean_ratio > 1.05").apply(sure).failed
    assert Condition("ttft_p95>0.4").apply(sure).failed
    assert Condition("max(jct_mean) >= 12.2").apply(sure).failed
    assert not Condition("max(jct_mean) > 12.2").apply(sure).failed
    assert not Condition("min(jct_mean) > 12.05").apply(sure).failed
