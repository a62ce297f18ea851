"""Every module of benchmarks/ can be imported: a rename elsewhere cannot break one unnoticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from continuum_server.policy.program_table import Guards
from continuum_traces.schema import Program, Turn

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_can_be_imported(file: Path) -> None:
    assert import_module(file.stem).__file__ == str(file)


def test_the_search_for_bad_behaviour_draws_attacks_that_fit_the_engine() -> None:
    fairness = import_module("fairness_keys")
    for seed in range(50):
        attack = fairness.invented(seed)
        for client in range(attack.clients):
            ask, pause_s = attack.ask(client, 1)
            assert 0 < len(ask.prompt) + ask.output <= fairness.POOL
            assert pause_s >= 0.0


@pytest.mark.parametrize(("keep_s", "found"), [(99.0, 0.0), (100.0, 1000 / 2200), (1e6, 1000 / 2200)])
def test_kv_that_is_kept_as_long_as_a_pause_is_found(keep_s: float, found: float) -> None:
    """After the last turn it is kept the whole time, in vain."""
    retention = import_module("retention")
    turns = (Turn(900, 100, gap_overhead_s=100.0, llm_s=10.0), Turn(300, 100))
    share, idle = retention.kept([Program("p", turns)], keep_s)
    assert share == pytest.approx(found)
    assert idle == pytest.approx((1000 * min(keep_s, 100.0) + 1400 * keep_s) / (2400 * 10.0))


def test_hostile_hints_are_those_of_the_rows_that_have_none() -> None:
    fairness = import_module("fairness_keys")
    for name in ("light", "one-offs", "continued", "guests"):
        for client in range(3):
            plain, hinted = (fairness.ATTACKS[each].ask(client, 1)[0] for each in (name, f"{name}-hints"))
            assert (plain.prompt, plain.output, plain.tags.program_id) == (
                hinted.prompt,
                hinted.output,
                hinted.tags.program_id,
            )
            assert (plain.tags.kv_ttl_s, hinted.tags.kv_ttl_s) == (None, 86_400.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "policy"),
    [
        # Room was made for the first request, and with it another key came first: vLLM started that one without KV.
        (100042, "working-set"),
        # One key's request needed the whole KV pool. Nine other keys always had a small stream running, so it
        # never fitted, and all requests behind it waited.
        (100033, "program-fcfs"),
    ],
)
def test_behaviours_beside_which_programs_did_not_end_once(seed: int, policy: str) -> None:
    fairness = import_module("fairness_keys")
    attack = fairness.invented(seed)
    assert fairness.seconds(attack, policy, "other", Guards())[1] == attack.victims.number
