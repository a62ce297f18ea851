"""The best TTL against a look at every sample, and tool statistics as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continuum_server.policy.estimate import Memoryfulness
from continuum_server.policy.registry import make_policy
from continuum_server.policy.tool_statistics import ToolStatistics, merge_statistics
from continuum_server.policy.tool_times import ToolTimes
from continuum_server.vllm_plugin.statistics_files import StatisticsError
from hypothesis import given
from hypothesis import strategies as st
from nano import build
from policy_driver import MACHINE, Driver


def plain_ttl(samples: list[float], gain_s: float) -> float:
    """argmax over {0} and the samples of P(tau) * gain - tau, the smallest first: the definition, written down."""
    best_value, best_s = 0.0, 0.0
    for index, sample in enumerate(sorted(samples)):
        value = (index + 1) * (gain_s / len(samples)) - sample
        if value > best_value and sample < gain_s:
            best_value, best_s = value, sample
    return best_s


def times_of(samples: list[float], window: int) -> tuple[ToolTimes, list[float]]:
    """And those that are in the window."""
    times = ToolTimes(window)
    for sample in samples:
        times.add(sample)
    kept = samples[-window:]
    assert (times.recent(), times.count) == (kept, len(samples))
    return times, kept


# Samples and gains that are exact in binary, in a number of samples that is a power of two: no rounding anywhere, so
# that ties are ties for both.
exact_samples = st.lists(st.integers(0, 40).map(lambda n: n / 8), min_size=1, max_size=300)


@given(exact_samples, st.sampled_from([1, 2, 8, 64, 128]), st.lists(st.integers(0, 400), min_size=1, max_size=12))
def test_exactly_the_plain_decision_with_ties(samples: list[float], window: int, gains: list[int]) -> None:
    samples = samples[: max(window, 1 << (len(samples).bit_length() - 1))]
    times, kept = times_of(samples, window)
    if len(kept) & (len(kept) - 1) == 0:
        for gain in gains:
            assert times.best_ttl(gain / 8 * len(kept)) == plain_ttl(kept, gain / 8 * len(kept))
            assert times.best_ttl(gain / 8) == plain_ttl(kept, gain / 8)


# ----------------------------------------------------------------------------------------------------- statistics


def learned(seed: int, samples: int = 300) -> Driver:
    rng = np.random.default_rng(seed)
    driver = Driver("continuum", cold_samples=5)
    for _ in range(samples // 10):
        driver.gaps(str(rng.choice(["ls", "pytest", "pip"])), *rng.exponential(2.0, int(rng.integers(5, 15))).tolist())
    return driver


def test_statistics_survive_a_file_and_end_the_cold_start() -> None:
    first, second = learned(1).policy, Driver("continuum", cold_samples=5).policy
    assert second.export_statistics()["all"]["count"] == 0
    assert second.tools.is_cold
    second.import_statistics(json.loads(json.dumps(first.export_statistics())))
    assert not second.tools.is_cold
    assert second.export_statistics() == first.export_statistics()
    assert second.state()["eta"] == first.state()["eta"]
    for tool in ("ls", "pytest", "pip", "never seen"):
        for gain in (0.5, 3.0, 50.0):
            assert second.tools.times_for(tool).best_ttl(gain) == first.tools.times_for(tool).best_ttl(gain)


def test_merging_counts_everybody_and_keeps_some_of_each() -> None:
    runs = [learned(seed, 100).policy.export_statistics() for seed in (1, 2, 3)]
    merged = merge_statistics(runs)
    assert merged["all"]["count"] == sum(run["all"]["count"] for run in runs)
    assert sorted(merged["all"]["recent_s"]) == sorted(s for run in runs for s in run["all"]["recent_s"])
    newest = merged["all"]["recent_s"][-3:]
    assert sorted(newest) == sorted(run["all"]["recent_s"][-1] for run in runs)
    together = Memoryfulness()
    for run in runs:
        together.from_json(run["program_lengths"])
    assert merged["program_lengths"] == together.to_json()
    assert merge_statistics(runs[:1]) == runs[0]
    small = Driver("continuum", sample_window=6).policy
    small.import_statistics(merged)
    assert small.tools.times_for("never seen").recent() == merged["all"]["recent_s"][-6:]
    assert small.tool_counts() == {tool: given["count"] for tool, given in merged["tools"].items()}


HEAD = {"schema": "continuum-tool-statistics", "version": 1}
BROKEN: list[Any] = [
    [],
    {},
    {**HEAD, "version": 2},
    *({**HEAD, "all": {"count": count, "recent_s": [s]}} for count, s in ((1, 1e308), (10**30, 1.0), (0, 1.0))),
    *({**HEAD, "all": {"count": 1, "recent_s": [sample]}} for sample in (True, -1.0, "x")),
    {**HEAD, "keys": {"a": {"ls": []}}},
    {**HEAD, "tools": {"a": 3}},
    *({**HEAD, "program_lengths": {"pairs": pairs}} for pairs in (10**400, "x")),
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_statistics_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"statistics|program_lengths"):
        make_policy("continuum", {}, MACHINE).import_statistics(data)


def test_an_engine_starts_from_files(tmp_path: Path) -> None:
    counts = 0
    for seed in (1, 2):
        statistics = learned(seed).policy.export_statistics()
        (tmp_path / f"{seed}.json").write_text(json.dumps(statistics), encoding="utf-8")
        counts += statistics["all"]["count"]
    scheduler, _ = build([], "continuum", {"statistics": f"{tmp_path / '1.json'}, {tmp_path / '2.json'}"})
    assert scheduler.table.policy.export_statistics()["all"]["count"] == counts
    with pytest.raises(StatisticsError, match=r"3\.json: cannot read"):
        build([], "continuum", {"statistics": str(tmp_path / "3.json")})


def test_memory_is_bounded_and_the_tool_not_called_for_longest_goes() -> None:
    tools = ToolStatistics(cold_samples=2, window=4, max_tools=10)
    for number in range(1_000):
        tools.add(f"tool-{number % 300}", 1.0)
        tools.add("ls", 1.0)
    assert list(tools.counts()) == [*(f"tool-{number}" for number in range(91, 100)), "ls"]
    assert len(tools.times_for("nobody").recent()) == 4


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
    """Turns that call no tool. Each but the first says which tool ran before it."""
    driver = Driver("continuum", cold_samples=0)
    wanted = [("them", f"p{number}", f"tool-{number}", 1) for number in range(400)]
    for key, program_id, tool, turns in [*wanted, ("me", "p", "build", 8)]:
        for number in range(1 + turns):
            driver.turn(
                program_id, None, 1.0, key=key, last_func_call=tool if number else None, last_tool_duration_s=1.0
            )
    assert driver.policy.tool_counts()["me:build (hint)"] == 8
    again = make_policy("continuum", {}, MACHINE)
    again.import_statistics(json.loads(json.dumps(driver.policy.export_statistics())))
    assert again.tool_counts() == driver.policy.tool_counts()


# A file may be edited, or written by somebody else. What passes as statistics makes no policy fail.
POISONED: list[Any] = [
    {"all": {"count": 3, "recent_s": [1e9] * 3}, "tools": {"ls": {"count": 2**62, "recent_s": [1e9] * 200}}},
    {"program_lengths": {"pairs": 2**62, "k": 0, "kk": 2**62, "rest": 0, "rest2": 2**62, "k_rest": 2**62}},
    {"program_lengths": {"pairs": 3, "k": 2**62, "unknown": 1}},
    {"keys": {"": {"": {"count": 0, "recent_s": []}}, "x": {}}, "somebody's": [{}]},
]


@pytest.mark.parametrize("data", POISONED, ids=range(len(POISONED)))
@pytest.mark.parametrize(("policy", "options"), [("continuum", {"cold_samples": 0}), ("working-set", {})])
def test_what_passes_as_statistics_makes_no_policy_fail(policy: str, options: dict[str, int], data: Any) -> None:
    driver = Driver(policy, **options)
    driver.policy.import_statistics({**HEAD, **data})
    driver.gaps("ls", *[1.0] * 5)
    for each in (driver.policy.state(), driver.policy.export_statistics()):
        json.dumps(each, allow_nan=False)
