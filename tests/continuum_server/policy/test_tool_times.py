"""The best TTL against a look at every sample, and tool statistics as JSON."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from continuum_server.policy.estimate import Memoryfulness
from continuum_server.policy.facts import TurnState
from continuum_server.policy.registry import make_policy
from continuum_server.policy.rules.continuum import Continuum
from continuum_server.policy.tool_statistics import Statistics, ToolStatistics, merge_statistics
from continuum_server.policy.tool_times import ToolTimes
from continuum_server.vllm_plugin.statistics_files import StatisticsError
from continuum_traces.importers.registry import read_any
from hypothesis import given
from hypothesis import strategies as st
from nano import build
from policy_driver import MACHINE, Driver


class Plain:
    """Sorted list and a look at every sample: the definition, written down."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def best_ttl(self, gain_s: float) -> float:
        samples = self._sorted
        if not samples or gain_s <= 0.0:
            return 0.0
        per_sample = gain_s / len(samples)
        best_value, best_s = 0.0, 0.0
        for index in range(bisect_left(samples, gain_s)):
            value = (index + 1) * per_sample - samples[index]
            if value > best_value:
                best_value, best_s = value, samples[index]
        return best_s


def both(window: int) -> tuple[ToolTimes, Plain]:
    return ToolTimes(window), Plain(window)


# Samples and gains that are exact in binary, in a number of samples that is a power of two: no rounding anywhere, so
# that ties are ties for both.
exact_samples = st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=1, max_size=300)


@given(exact_samples, st.sampled_from([1, 2, 8, 64, 128]), st.lists(st.integers(0, 400), min_size=1, max_size=12))
def test_exactly_the_plain_decision_with_ties(samples: list[float], window: int, gains: list[int]) -> None:
    times, plain = both(window)
    for number, sample in enumerate(samples):
        times.add(sample)
        plain.add(sample)
        held = min(number + 1, window)
        if held & (held - 1) == 0:
            for gain in gains:
                assert times.best_ttl(gain / 8 * held) == plain.best_ttl(gain / 8 * held)
                assert times.best_ttl(gain / 8) == plain.best_ttl(gain / 8)


DISTRIBUTIONS: dict[str, Any] = {
    "uniform": lambda rng, i: rng.uniform(0, 10),
    "exponential": lambda rng, i: rng.exponential(1.0),
    "long tail": lambda rng, i: rng.lognormal(-1.0, 1.5),
    "bimodal": lambda rng, i: rng.uniform(0, 1) if i % 2 else 100 + rng.uniform(0, 1),
    "whole seconds": lambda rng, i: float(rng.integers(20)),
    "identical": lambda rng, i: 3.0,
    "rising": lambda rng, i: i / 128,  # in hundredths, equal steps would tie but for rounding
    "falling": lambda rng, i: 100.0 - i / 128,
    "convex": lambda rng, i: (0.001 * i) ** 3,
    "concave": lambda rng, i: math.sqrt(i),
    "a sudden shift": lambda rng, i: rng.exponential(0.3 if i < 1000 else 30.0),
}


@pytest.mark.parametrize("window", [1, 7, 65, 500, 100_000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_plain_decision(name: str, window: int) -> None:
    """Two thousand samples, windows that slide, gains of every size, decisions early and late."""
    rng = np.random.default_rng(7)
    times, plain = both(window)
    for number in range(2_000):
        sample = float(DISTRIBUTIONS[name](rng, number))
        times.add(sample)
        plain.add(sample)
        if number % 41 == 0 or number < 30:
            for gain in (0.1, *rng.exponential(20.0, 3), *rng.uniform(0, 400, 3)):
                assert times.best_ttl(float(gain)) == plain.best_ttl(float(gain))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400), st.integers(1, 300), st.lists(st.floats(0, 1e7)))
def test_no_other_tau_is_better(samples: list[float], window: int, gains: list[float]) -> None:
    """Any numbers at all: where rounding leaves a choice, the value is that of the plain search."""
    times, plain = both(window)
    for sample in samples:
        times.add(sample)
        plain.add(sample)
    kept = sorted(samples[-window:])

    def value(tau: float, gain: float) -> float:
        return sum(sample <= tau for sample in kept) / len(kept) * gain - tau if tau > 0 else 0.0

    for gain in gains:
        found, wanted = times.best_ttl(gain), plain.best_ttl(gain)
        assert value(found, gain) == pytest.approx(value(wanted, gain), rel=1e-9, abs=1e-9 * max(1.0, gain))


def test_recent_samples_in_order() -> None:
    times = ToolTimes(3)
    for sample in (5.0, 1.0, 4.0, 2.0):
        times.add(sample)
    assert times.recent() == [1.0, 4.0, 2.0]
    assert times.count == 4


# ----------------------------------------------------------------------------------------------------- statistics


def learned(seed: int, samples: int = 300) -> Driver:
    rng = np.random.default_rng(seed)
    driver = Driver("continuum", cold_samples=5)
    for _ in range(samples // 10):
        driver.gaps(str(rng.choice(["ls", "pytest", "pip"])), *rng.exponential(2.0, int(rng.integers(5, 15))).tolist())
    return driver


def test_statistics_survive_a_file() -> None:
    first = learned(1).table.policy
    second = make_policy("continuum", {"cold_samples": 5}, MACHINE)
    second.import_statistics(json.loads(json.dumps(first.export_statistics())))
    assert second.export_statistics() == first.export_statistics()
    assert second.state()["eta"] == first.state()["eta"]
    assert isinstance(first, Continuum)
    assert isinstance(second, Continuum)
    for tool in ("ls", "pytest", "pip", "never seen"):
        for gain in (0.5, 3.0, 50.0):
            assert second.tools.times_for(tool).best_ttl(gain) == first.tools.times_for(tool).best_ttl(gain)


def test_imported_statistics_end_the_cold_start() -> None:
    driver = Driver("continuum", cold_samples=5)
    assert driver.table.policy.export_statistics()["all"]["count"] == 0
    driver.table.policy.import_statistics(learned(1).table.policy.export_statistics())
    policy = driver.table.policy
    assert isinstance(policy, Continuum)
    assert not policy.tools.is_cold


def test_merging_counts_everybody_and_keeps_some_of_each() -> None:
    runs = [learned(seed, 100).table.policy.export_statistics() for seed in (1, 2, 3)]
    merged = merge_statistics(runs)
    assert merged["all"]["count"] == sum(run["all"]["count"] for run in runs)
    assert sorted(merged["all"]["recent_s"]) == sorted(s for run in runs for s in run["all"]["recent_s"])
    newest = merged["all"]["recent_s"][-3:]
    assert sorted(newest) == sorted(run["all"]["recent_s"][-1] for run in runs)
    together = Memoryfulness()
    for run in runs:
        together.from_json(run["program_lengths"])
    assert merged["program_lengths"] == together.to_json()
    assert merge_statistics(runs[:1]) == {**runs[0], "tools": merged_alone(runs[0])}
    small = ToolStatistics(5, window=6)
    small.load(msgspec.convert(merged, Statistics))
    assert len(small.times_for("never seen")) == 6
    assert small.counts() == {tool: given["count"] for tool, given in merged["tools"].items()}


def merged_alone(run: dict[str, Any]) -> dict[str, Any]:
    return dict(run["tools"])


BROKEN: list[Any] = [
    {},
    {"schema": "continuum-tool-statistics", "version": 2},
    {"schema": "continuum-tool-statistics", "version": 1, "all": 5},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 1, "recent_s": [1e308]}},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 10**30, "recent_s": [1.0]}},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 1, "recent_s": [True]}},
    {"schema": "continuum-tool-statistics", "version": 1, "keys": {"a": {"ls": []}}},
    {"schema": "continuum-tool-statistics", "version": 1, "program_lengths": {"pairs": 10**400}},
    [],
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 1, "recent_s": [-1.0]}, "tools": {}},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 0, "recent_s": [1.0]}, "tools": {}},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 1, "recent_s": ["x"]}, "tools": {}},
    {"schema": "continuum-tool-statistics", "version": 1, "all": {"count": 0, "recent_s": []}, "tools": {"a": 3}},
    {
        "schema": "continuum-tool-statistics",
        "version": 1,
        "all": {"count": 0, "recent_s": []},
        "tools": {},
        "program_lengths": {"pairs": "x"},
    },
]


@pytest.mark.parametrize("data", BROKEN)
def test_what_is_no_statistics_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"statistics|program_lengths"):
        make_policy("continuum", {}, MACHINE).import_statistics(data)


def test_an_engine_starts_from_files(tmp_path: Path) -> None:
    for seed in (1, 2):
        statistics = learned(seed).table.policy.export_statistics()
        (tmp_path / f"{seed}.json").write_text(json.dumps(statistics), encoding="utf-8")
    named = f"{tmp_path / '1.json'}, {tmp_path / '2.json'}"
    scheduler, _ = build([], "continuum", {"statistics": named})
    counts = [learned(seed).table.policy.export_statistics()["all"]["count"] for seed in (1, 2)]
    assert scheduler.table.policy.export_statistics()["all"]["count"] == sum(counts)
    with pytest.raises(StatisticsError, match=r"3\.json: cannot read"):
        build([], "continuum", {"statistics": str(tmp_path / "3.json")})


def test_memory_is_bounded_and_the_tool_not_called_for_longest_goes() -> None:
    tools = ToolStatistics(cold_samples=2, window=4, max_tools=10)
    for number in range(1_000):
        tools.add(f"tool-{number % 300}", 1.0)
        tools.add("ls", 1.0)
    assert list(tools.counts()) == [*(f"tool-{number}" for number in range(91, 100)), "ls"]
    assert len(tools.times_for("nobody")) == 4


def test_each_key_has_its_share_of_the_tools() -> None:
    tools = ToolStatistics(cold_samples=0, window=4, max_tools=10)
    for number in range(400):
        tools.add(f"tool-{number}", 9.0, key="them")
    for number in range(8):
        tools.add(f"mine-{number}", 1.0, key="me")
    assert [name for name in tools.counts() if name.startswith("me:")] == [f"me:mine-{n}" for n in range(3, 8)]
    assert len(tools.counts()) == 10
    for number in range(400):
        tools.add(f"tool-{number}", 9.0, key="them")
    assert tools.get("mine-7", "me") is not None
    tools.add("mine-7", 5.0, key="them")
    assert tools.times_for("mine-7", "me").recent() == [1.0]
    assert tools.times_for("mine-7", "them").recent() == [5.0]


def test_another_key_s_tools_cannot_keep_yours_from_being_learned() -> None:
    driver = Driver("continuum", cold_samples=0)
    for number in range(400):
        away(driver, "them", f"p{number}", f"tool-{number}", 1)
    away(driver, "me", "p", "build", 8)
    assert driver.table.policy.state()["tools"]["me:build (hint)"] == 8
    again = make_policy("continuum", {}, MACHINE)
    again.import_statistics(json.loads(json.dumps(driver.table.policy.export_statistics())))
    assert again.state()["tools"] == driver.table.policy.state()["tools"]


def away(driver: Driver, key: str, program_id: str, tool: str, turns: int) -> None:
    """Turns that call no tool. Each but the first says which tool ran before it."""
    table = driver.table
    for number in range(1 + turns):
        program = table.program_for(program_id, driver.now_s, namespace=key)
        request_id, sequence = f"{key}/{program_id}/{number}", table.next_sequence()
        turn = TurnState(program, 0, request_id, driver.now_s, 100, sequence, ran=tool if number else None, ran_s=1.0)
        table.arrive(turn, driver.now_s)
        driver.finish(driver.start(turn), None)
        driver.now_s += 1.0


# A file may be edited, or written by somebody else. What passes as statistics makes no policy fail.
POISONED: list[Any] = [
    {"all": {"count": 3, "recent_s": [1e9] * 3}, "tools": {"ls": {"count": 2**62, "recent_s": [1e9] * 200}}},
    {"program_lengths": {"pairs": 2**62, "k": 0, "kk": 2**62, "rest": 0, "rest2": 2**62, "k_rest": 2**62}},
    {"program_lengths": {"pairs": 3, "k": 2**62, "unknown": 1}},
    {"keys": {"": {"": {"count": 0, "recent_s": []}}, "x": {}}, "somebody's": [{}]},
]


@pytest.mark.parametrize("data", POISONED, ids=range(len(POISONED)))
@pytest.mark.parametrize("policy", ["continuum", "working-set"])
def test_what_passes_as_statistics_makes_no_policy_fail(policy: str, data: Any) -> None:
    driver = Driver(policy, **({"cold_samples": 0} if policy == "continuum" else {}))
    driver.table.policy.import_statistics({"schema": "continuum-tool-statistics", "version": 1, **data})
    driver.gaps("ls", *[1.0] * 5)
    for each in (driver.table.policy.state(), driver.table.policy.export_statistics()):
        json.dumps(each, allow_nan=False)


def test_real_tool_times(real_traces: Path) -> None:
    """The same decisions as the plain search on every gap of 99 real programs, tool by tool."""
    file = real_traces / "mswe_deepseek_chat_test_1-100.jsonl.gz"
    if not file.is_file():
        pytest.skip("no mini-swe-agent trace beside this checkout (../shared/traces)")
    of_tools: dict[str, tuple[ToolTimes, Plain]] = {}
    decided = 0
    for program in read_any(file):
        for turn in program.turns:
            for tool in {"all", *(call.name for call in turn.tool_calls)}:
                times, plain = of_tools.setdefault(tool, both(4096))
                times.add(turn.gap_s)
                plain.add(turn.gap_s)
                if times.count % 40 == 0:
                    decided += 1
                    for gain in (0.2, 1.0, 5.0, 60.0):
                        assert times.best_ttl(gain) == plain.best_ttl(gain)
    assert decided > 300
