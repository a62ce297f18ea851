"""The check of the check: it must find the nominal rate where there is nothing, and alarms where there is something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from continuum_analysis.compare.runs import Run, load_runs
from continuum_analysis.records.timeline import AnalysisError
from recorded_runs import write_recorded
from self_check import self_check


@pytest.fixture(autouse=True)
def few_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("self_check.DEALS", 40)


def write_runs(path: Path, seeds: int, faster: float = 1.0, noise: int = 0) -> list[Run]:
    """One-turn programs whose times vary with the seed (its load) and a little by themselves."""
    for seed in range(seeds):
        load, own = np.random.default_rng(seed).uniform(50, 150), np.random.default_rng((seed, noise + 1))
        ends_s = [load * float(own.uniform(0.9, 1.1)) / faster for _ in range(8)]
        write_recorded(path / f"seed{seed}", "continuum", seed, ends_s, gap_s=1.0)
    return load_runs(path)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    runs, twins = write_runs(tmp_path / "a", 40), write_runs(tmp_path / "b", 40, noise=1)
    rates = self_check(runs, twins, 5)
    assert [(rate.pairs, rate.separate) for rate in rates] == [
        *(("other seeds", number) for number in (4, 4, 20)),
        *(("same arrivals", number) for number in (8, 8, 40)),
    ]
    by_logarithm = [rate for rate in rates if rate.method.startswith("log ratio")]
    assert all(rate.rate <= 0.1 for rate in by_logarithm), by_logarithm
    one_pair = rates[2]
    assert one_pair.rate > 0.5  # programs of one sequence share its load: resampling them knows nothing of the next


def test_a_true_difference_is_an_alarm(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "a", 20)
    for name, faster, noise in (("much", 1.3, 1), ("hardly", 1.0001, 0)):
        found = self_check(runs, write_runs(tmp_path / name, 20, faster, noise), 5)
        paired = next(rate for rate in found if rate.pairs == "same arrivals")
        assert (paired.rate, paired.alarms, paired.separate) == (1.0, 4, 4)


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="continuum: 8 runs are too few for two comparisons of 5 pairs"):
        self_check(write_runs(tmp_path, 8), [], 5)
