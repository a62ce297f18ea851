"""Every module of benchmarks/ can be imported: a rename elsewhere cannot break one unnoticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from continuum_server.policy.program_table import Guards

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
