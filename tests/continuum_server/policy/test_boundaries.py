"""Constants and thresholds of policies, each with a case at, below or above it."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import pytest
from continuum_server.policy.facts import Hold, PrefillCurve, ProgramState, Stored, TurnFinish, TurnState
from continuum_server.policy.hints import Predictions
from continuum_server.policy.holds import Holds
from continuum_server.policy.returns import Returns
from policy_driver import MACHINE, Driver


def finish(tool: str | None, share: float, context: int = 20_000) -> TurnFinish:
    turn = TurnState(ProgramState("p", 0.0, 1), 0, "r", 0.0, context, 1)
    return TurnFinish(turn, 0.0, context, 10, tool, return_share=share)


@pytest.mark.parametrize(
    ("share", "cold_s", "warm_s"), [(1.0, log(20), 15.0), (0.8, log(16), 15.0), (0.7, log(14), 0.0)]
)
def test_continuum_holds_in_proportion_to_the_share_of_programs_that_go_on(
    share: float, cold_s: float, warm_s: float
) -> None:
    """A rebuild takes 20 s, and every recorded tool 15 s."""
    cold, warm = Driver("continuum").policy, Driver("continuum", cold_samples=0).policy
    warm.tools.add("ls", 15.0)
    holds: list[Hold] = [policy.turn_finished(finish("ls", share)) for policy in (cold, warm)]
    assert [hold.ttl_s for hold in holds] == pytest.approx([cold_s, warm_s])


@pytest.mark.parametrize(("away_s", "late_s"), [(20.0, 60.0), (1.0, 30.0), (300.0, 600.0)])
def test_a_program_has_ended_when_it_is_late(away_s: float, late_s: float) -> None:
    """Three times the mean time between turns, at least 30 s, at most the longest hold."""
    returns, program, gone = Returns(600.0), ProgramState("p", 0.0, 1), ProgramState("gone", 0.0, 2)
    returns.finished(program, "ls", 0.0)
    returns.returned(program, away_s)
    returns.finished(gone, "ls", 1000.0)
    before = returns.share(program, "ls", 1000.0)
    assert returns.share(program, "ls", 1000.0 + late_s) == before
    assert returns.share(program, "ls", 1000.0 + late_s + 0.001) < before


def test_a_program_is_late_two_standard_deviations_after_its_prediction() -> None:
    """The deviation of the logarithm follows from the predicted P90."""
    turn = replace_hint(1.0, 2.0)
    hold_s = Predictions().hold_s(turn, 0.0, even_s=100.0, learned_s=0.0)
    assert hold_s == pytest.approx(1.25 * exp(2.0 * log(2.25 / 1.25) / 1.2816))


def replace_hint(tool_s: float, p90_s: float) -> TurnState:
    turn = finish("ls", 1.0).turn
    turn.tool_hint_s, turn.tool_hint_p90_s = tool_s, p90_s
    return turn


@pytest.mark.parametrize(("inside", "loss_s"), [(1, 8.0), (4, 2.0), (8, 1.0)])
def test_the_wait_of_a_program_that_reloads_costs_its_share_of_the_engine(inside: int, loss_s: float) -> None:
    """A reload takes no time, and returning programs waited 8 s. To compute again takes 20 s."""
    holds = Holds(replace(MACHINE, prefill=PrefillCurve(0.0, 1e-3, 0.0), swap_token_s=0.0), learns=True)
    holds.in_tier.add(1.0)
    holds.back_s.add(8.0)
    assert holds.loss_s(20_000, 20_000, inside, Stored(20_000)) == pytest.approx(loss_s)


@pytest.mark.parametrize(("tokens", "goes_on"), [(7, True), (8, True), (9, False)])
def test_a_compacted_prompt_has_at_most_half_of_the_last_context(tokens: int, goes_on: bool) -> None:
    driver = Driver("program-fcfs")
    first = driver.arrive("a", "abcdefghijklmnop")
    driver.finish(first, context=16 * 16)
    assert (driver.arrive("a", "a" + "X" * (tokens - 1)).program is first.program) == goes_on
