"""The check of the check: it must find the nominal rate where there is nothing, and alarms where there is something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from continuum_analysis.compare.runs import Run, load_runs
from continuum_analysis.records.timeline import AnalysisError
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord
from self_check import self_check


def write_runs(path: Path, seeds: int, faster: float = 1.0, noise: int = 0) -> list[Run]:
    """One-turn programs whose times vary with the seed (its load) and a little by themselves."""
    for seed in range(seeds):
        random, own = np.random.default_rng(seed), np.random.default_rng((seed, noise + 1))
        load = random.uniform(50, 150)
        folder = path / f"seed{seed}"
        folder.mkdir(parents=True)
        write_manifest(folder, Manifest(policy="continuum", seed=seed, engine="virtual"))
        events, records = [], []
        for number in range(8):
            name, t = f"p{number}", float(number)
            jct_s = load * float(own.uniform(0.9, 1.1)) / faster
            events.append(SchedulerEvent(t, "arrive", name, 0, prompt_tokens=8))
            events.append(SchedulerEvent(t, "start", name, 0, prompt_tokens=8, hit_tokens=0))
            events.append(SchedulerEvent(t + jct_s, "finish", name, 0, output_tokens=2, status="stop"))
            records.append(TurnRecord(name, 0, t, t, is_last=True))
        write_rows(folder / EVENTS, events)
        write_rows(folder / TURNS, records)
        write_json(folder / "engine.json", {})
    return load_runs(path)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    runs, twins = write_runs(tmp_path / "a", 40), write_runs(tmp_path / "b", 40, noise=1)
    rates = self_check(runs, twins, 5)
    assert [(rate.pairs, rate.separate) for rate in rates] == [
        ("other seeds", 4),
        ("other seeds", 4),
        ("other seeds", 20),
        ("same arrivals", 8),
        ("same arrivals", 8),
        ("same arrivals", 40),
    ]
    by_logarithm = [rate for rate in rates if rate.method.startswith("log ratio")]
    assert all(rate.rate <= 0.1 for rate in by_logarithm), by_logarithm
    one_pair = rates[2]
    assert one_pair.rate > 0.5  # programs of one sequence share its load: resampling them knows nothing of the next


def test_a_true_difference_is_an_alarm(tmp_path: Path) -> None:
    runs, twins = write_runs(tmp_path / "a", 20), write_runs(tmp_path / "b", 20, faster=1.3, noise=1)
    paired = [rate for rate in self_check(runs, twins, 5) if rate.pairs == "same arrivals"]
    assert paired[0].rate == 1.0
    assert paired[0].alarms == paired[0].separate == 4
    assert paired[0].claims == 1.0


def test_next_to_nothing_is_seen_and_not_claimed(tmp_path: Path) -> None:
    runs, twins = write_runs(tmp_path / "a", 20), write_runs(tmp_path / "b", 20, faster=1.0001)
    paired = [rate for rate in self_check(runs, twins, 5) if rate.pairs == "same arrivals"]
    assert (paired[0].rate, paired[0].claims) == (1.0, 0.0)


def test_too_few_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="continuum: 8 runs are too few for two comparisons of 5 pairs"):
        self_check(write_runs(tmp_path, 8), [], 5)
