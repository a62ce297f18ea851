"""Throughput and overload of runs made by hand, whatever the order in which programs are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from continuum_analysis.metrics import is_overloaded, measure
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.reading import add_client_records, order_events
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord, Workload
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import served

TURNS, TURN_S = 4, 1.0


@dataclass
class Program:
    number: int
    due_s: float
    """When its next turn arrives."""
    begun_s: float
    done: int = 0


ORDERS: dict[str, Callable[[Program], object]] = {
    "first come, first served": lambda program: program.begun_s,
    "last come, first served": lambda program: -program.begun_s,
    "least attained service": lambda program: (program.done, program.begun_s),
    "most attained service": lambda program: (-program.done, program.begun_s),
    "all last turns at the end": lambda program: (program.done == TURNS - 1, program.begun_s),
}


def played(
    order: Callable[[Program], object], arrivals_s: Sequence[float], until_s: float = 1e9
) -> tuple[list[SchedulerEvent], list[TurnRecord]]:
    """One turn after the other on one engine; the next one is the first in the order of those that have arrived."""
    left = [Program(number, arrival_s, arrival_s) for number, arrival_s in enumerate(arrivals_s)]
    now_s, events, records = 0.0, [], []
    while left and now_s < until_s:
        here = [program for program in left if program.due_s <= now_s]
        if not here:
            now_s = min(program.due_s for program in left)
            continue
        program = min(here, key=lambda each: (order(each), each.number))  # type: ignore[arg-type, return-value]
        name, due_s, is_last = f"p{program.number}", program.due_s, program.done == TURNS - 1
        end_s = now_s + TURN_S
        events += served(name, program.done, due_s, 100, wait_s=now_s - due_s, run_s=TURN_S)
        instants = (due_s, due_s, end_s, end_s)
        gap_s = None if is_last else 0.0
        records.append(TurnRecord(name, program.done, *instants, 100, 5, gap_s=gap_s, is_last=is_last))
        program.done, program.due_s, now_s = program.done + 1, end_s, end_s
        left = [each for each in left if each.done < TURNS]
    for program in left:
        if program.due_s < until_s:
            events.append(SchedulerEvent(program.due_s, "arrive", f"p{program.number}", program.done))
            stopped = {"error": "stopped: the run ended"}
            records.append(TurnRecord(f"p{program.number}", program.done, program.due_s, program.due_s, **stopped))  # type: ignore[arg-type]
    return sorted(events, key=lambda event: event.t), records


def poisson(load: float, programs: int, seed: int) -> list[float]:
    """Arrivals at this load of the engine."""
    generator, now_s, arrivals = Random(seed), 0.0, []
    for _ in range(programs):
        now_s += generator.expovariate(load / (TURNS * TURN_S))
        arrivals.append(now_s)
    return arrivals


@pytest.mark.parametrize("clock", ["client", "scheduler"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("load", "overloaded"), [(0.3, False), (0.6, False), (1.5, True), (3.0, True), (1e6, True)])
def test_overload_does_not_depend_on_the_order(load: float, overloaded: bool, order: str, clock: str) -> None:
    for seed in range(3):
        events, records = played(ORDERS[order], poisson(load, 100, seed))
        programs = add_client_records(order_events(events), records if clock == "client" else [])
        assert is_overloaded(measure(facts_of(programs)).values) == overloaded


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=12), st.sampled_from(sorted(ORDERS)))
def test_throughput_is_finished_work_over_the_time_it_took(gaps_s: list[float], order: str) -> None:
    """An engine that is never idle while a turn waits finishes the same work in the same time in every order."""
    arrivals_s = [sum(gaps_s[: number + 1]) for number in range(len(gaps_s))]
    rates = []
    for chosen in ("first come, first served", order):
        events, records = played(ORDERS[chosen], arrivals_s)
        values = measure(facts_of(add_client_records(order_events(events), records))).values
        rates.append([values[f"throughput_{name}"] for name in ("jobs_per_s", "steps_per_min", "output_tokens_per_s")])
        took_s = max(event.t for event in events) - arrivals_s[0]
        assert rates[-1] == pytest.approx([count * len(arrivals_s) / took_s for count in (1, 60 * 4, 5 * 4)])
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_that_is_cut_short_is_overloaded_in_every_order(order: str) -> None:
    arrivals_s = poisson(2.0, 60, 0)
    events, records = played(ORDERS[order], arrivals_s, until_s=arrivals_s[-1])
    values = measure(facts_of(add_client_records(order_events(events), records))).values
    assert is_overloaded(values)
    assert values["throughput_steps_per_min"] == pytest.approx(60.0, rel=0.05)  # an answer each second, to whomever


def test_finished_work_of_a_window_is_what_ends_in_it() -> None:
    """A closed loop, seconds 10 to 30: turns that were due before and ended in it count, later ends do not."""
    instants = [(0.0, 9.9), (5.0, 10.0), (12.0, 29.9), (15.0, 30.0)]
    records = [
        TurnRecord(f"p{number}", 0, due_s, due_s, end_s, end_s, 10, 7, is_last=True)
        for number, (due_s, end_s) in enumerate(instants)
    ]
    events = [
        event
        for number, (due_s, end_s) in enumerate(instants)
        for event in served(f"p{number}", 0, due_s, 10, wait_s=0.0, run_s=end_s - due_s, output_tokens=7)
    ]
    workload = Workload(arrivals="concurrency:4", time_limit_s=40.0, warm_up="10s", cool_down="10s")
    values = measure(facts_of(add_client_records(order_events(events), records), Manifest(workload=workload))).values
    assert values["throughput_jobs_per_s"] == 2 / 20
    assert values["throughput_steps_per_min"] == 60 * 2 / 20
    assert values["throughput_output_tokens_per_s"] == 14 / 20
    assert values["backlog_growth"] is None


@pytest.mark.parametrize(
    ("growth", "queued", "slowdown", "overloaded"),
    [
        (0.09, 1.0, 9.0, False),
        (0.1, 1.0, 9.0, False),
        (0.11, 1.0, None, True),
        (0.11, 0.19, None, False),
        (0.11, 0.2, 2.0, False),
        (0.11, 0.21, 1.0, True),
        (0.11, 0.0, 2.1, True),
        (0.11, None, None, True),
        (None, 1.0, 9.0, False),
    ],
)
def test_the_bounds_of_overload(
    growth: float | None, queued: float | None, slowdown: float | None, overloaded: bool
) -> None:
    values = {"backlog_growth": growth, "queued_share": queued, "slowdown_mean": slowdown}
    assert is_overloaded(values) == overloaded


@pytest.mark.parametrize(("programs", "known"), [(9, False), (10, True)])
def test_growth_needs_ten_programs(programs: int, known: bool) -> None:
    events, _ = played(ORDERS["first come, first served"], [float(number) for number in range(programs)])
    assert (measure(facts_of(order_events(events))).values["backlog_growth"] is not None) == known
