"""``working-set`` in a program table over a pool of 1,000 tokens: admission, places lost, forecasts of growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy.estimate import Footprints
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, Step, Stored, TurnState
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.programs import Prompt, marks_of
from continuum_server.policy.registry import PolicyError, find_policy, make_policy, read_options
from continuum_server.policy.tool_times import RecentToolTimes
from hypothesis import given
from hypothesis import strategies as st

MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=1000)


class Gate:
    """A program table under the policy, its clock, and turns by hand."""

    def __init__(self, machine: Machine = MACHINE, worth: float | None = None, **options: object) -> None:
        if worth is not None:
            machine = replace(machine, decode=DecodeLine(worth, (1.0 - worth) / machine.kv_tokens))
        self.policy: Any = make_policy("working-set", options, machine)
        self.table = ProgramTable(self.policy, Guards(), machine.kv_tokens, block_size=1)
        self.now_s = 0.0

    def arrive(
        self,
        name: str,
        prompt: int = 300,
        last: bool = False,
        tagged: bool = True,
        parent: str = "",
    ) -> TurnState:
        program = self.table.program_for(name, self.now_s, parent or None)
        number = self.table.next_sequence()
        turn = TurnState(
            program, program.turns_arrived, f"{name}/{number}", self.now_s, prompt, number, is_last=last, tagged=tagged
        )
        self.table.arrive(turn, self.now_s)
        return turn

    def finish(self, turn: TurnState, context: int = 300) -> None:
        self.table.start(turn, self.now_s, 0, 16)
        hold = self.table.finish(turn, self.now_s, context, 10, "ls")
        if hold is not None:
            self.table.pin(turn, self.now_s, hold, [f"{turn.request_id}/{n}" for n in range(context)])

    def admitted(self) -> list[str]:
        """Programs whose requests are let in by the next step."""
        orders = self.table.step(Step(self.now_s, 0))
        assert all(self.policy.rank(turn) is not None for turn in orders.rank_again)
        return [turn.program.program_id for turn in orders.rank_again]

    def waits(self, turn: TurnState) -> bool:
        return self.policy.rank(turn) is None


def full(**options: object) -> tuple[Gate, list[TurnState]]:
    """Three programs of 300 tokens inside."""
    gate = Gate(**options)
    inside = [gate.arrive(name) for name in "abc"]
    assert not any(gate.waits(turn) for turn in inside)
    return gate, inside


def test_a_new_program_waits_until_it_fits() -> None:
    gate, (first, *_) = full()
    late, later = gate.arrive("d"), gate.arrive("e", prompt=50)
    assert gate.waits(late)
    assert gate.waits(later)  # it would fit; nobody overtakes
    assert gate.admitted() == []
    first.is_last = True
    gate.finish(first)
    assert gate.admitted() == ["d", "e"]  # by now all programs end at 300 tokens: 600 inside, 300 more, 50 at the end


def test_growth_is_forecast_from_finished_programs_once_memory_was_short() -> None:
    gate = Gate()
    gate.finish(gate.arrive("done", prompt=400, last=True), context=400)
    a, b, c = (gate.arrive(name, prompt=100) for name in "abc")
    assert not any(gate.waits(turn) for turn in (a, b, c))  # three would grow to 1,200; nothing was lost yet
    gate.table.start(a, 0.0, 0, 16)
    gate.table.preempt(a, 0.0)
    d = gate.arrive("d", prompt=100)
    assert gate.waits(d)
    gate.table.abort(b)
    assert gate.admitted() == []  # three grow to 1,200
    gate.table.abort(c)
    assert gate.admitted() == ["d"]  # two to 800
    assert gate.waits(gate.arrive("e", prompt=100))
    gate.now_s = 600.5  # nothing was lost for 600 s: 300 tokens are there, and 100 more
    assert gate.admitted() == ["e"]


def test_kv_lost_to_others_counts_kv_given_up_does_not() -> None:
    gate = Gate(worth=0.5)
    gate.finish(gate.arrive("done", prompt=400, last=True), context=400)
    for name in "ab":
        gate.finish(gate.arrive(name, prompt=100), context=110)
    gate.now_s = 1e3
    assert gate.admitted() == []  # both holds are over
    for name in "ab":
        gate.table.start(gate.arrive(name, prompt=200), gate.now_s, hit_tokens=0, block_size=16)
    assert not gate.waits(gate.arrive("c", prompt=100))
    gate.finish(gate.arrive("c", prompt=100), context=110)
    gate.table.start(gate.arrive("c", prompt=200), gate.now_s, hit_tokens=0, block_size=16)
    assert gate.waits(gate.arrive("d", prompt=100))


def test_who_is_inside_is_never_held_back() -> None:
    gate, (first, *_) = full()
    gate.finish(first)
    gate.now_s = 1e4  # its hold is long over, its place lost
    gate.arrive("d")
    assert gate.admitted() == ["d"]
    assert not gate.waits(gate.arrive("a", prompt=900))
    assert gate.waits(gate.arrive("e"))


def test_alone_anything_goes() -> None:
    gate = Gate(share=0.1)
    assert not gate.waits(gate.arrive("a", prompt=900))
    assert gate.waits(gate.arrive("b", prompt=1))


def test_requests_that_name_no_program_are_neither_held_back_nor_counted() -> None:
    gate = Gate()
    plain = [gate.arrive(f"r{i}", tagged=False) for i in range(100)]
    assert not any(gate.waits(turn) for turn in plain)
    assert [gate.policy.rank(turn) for turn in plain] == sorted(gate.policy.rank(turn) or () for turn in plain)
    assert not gate.waits(gate.arrive("a"))
    gate.finish(plain[0])
    assert gate.table.pins == {}


def test_a_sub_agent_of_a_program_inside_passes() -> None:
    gate, (parent, *_) = full()
    assert gate.waits(gate.arrive("d"))
    assert gate.waits(gate.arrive("early", parent="a"))  # the parent does not wait for it yet
    gate.finish(parent)
    gate.table.abort(gate.table.programs_of("early")[0].turn)
    assert not gate.waits(gate.arrive("child", parent="a"))
    assert gate.waits(gate.arrive("another", parent="a"))  # one at a time
    assert gate.waits(gate.arrive("stranger", parent="nobody"))


def test_a_program_whose_tool_never_returns_loses_its_place() -> None:
    """Rebuilding 300 tokens takes 0.3 s of the engine; they are 0.3 of its memory, worth 0.15 of its speed: 2 s."""
    gate, inside = full(worth=0.5)
    for turn in inside:
        gate.finish(turn)
    late = gate.arrive("d")
    assert gate.admitted() == []
    assert gate.table.next_deadline_s() == 2.0
    gate.now_s = 2.0
    assert gate.admitted() == []
    gate.now_s = 2.001
    assert {pin.program.program_id for pin in gate.table.expired(gate.now_s)} == set("abc")
    assert gate.admitted() == ["d"]
    assert not gate.waits(late)


def test_who_never_says_it_is_done_counts_as_finished_when_its_hold_ends() -> None:
    gate = Gate(worth=0.5)
    gate.finish(gate.arrive("done", prompt=100), context=400)
    gate.now_s = 2.001
    assert gate.admitted() == []
    gate.policy.turn_preempted(gate.arrive("plain", tagged=False), gate.now_s)
    assert [gate.waits(gate.arrive(name, prompt=100)) for name in "abc"] == [False, False, True]
    assert gate.policy.state() == {"programs_inside": 2, "programs_outside": 1}


def test_aborted_requests_give_their_place_back() -> None:
    gate, inside = full()
    gate.arrive("d")
    gate.table.abort(inside[0])
    assert gate.admitted() == ["d"]


def test_who_gives_up_waiting_is_new_when_it_comes_back() -> None:
    gate, inside = full()
    impatient, late = gate.arrive("d"), gate.arrive("e")
    gate.table.abort(impatient)
    assert gate.waits(gate.arrive("f"))
    gate.table.abort(inside[0])
    assert gate.admitted() == ["e"]
    assert not gate.waits(late)
    assert gate.waits(gate.arrive("d"))  # no way around the queue


TIERS = replace(MACHINE, swap_token_s=1e-3)
"""A reload of 300 tokens takes 0.3 s."""


def test_with_tiers_the_room_is_the_gpus() -> None:
    """What the tiers hold cannot be in the batch. KV that was brought back was lost to others too."""
    gate, _ = full(machine=TIERS)
    assert gate.waits(gate.arrive("d"))
    gate = Gate(machine=TIERS, worth=0.5)
    gate.finish(gate.arrive("done", prompt=1000, last=True), context=1000)
    gate.finish(gate.arrive("a"))
    gate.finish(gate.arrive("b"))
    back = gate.arrive("a")
    gate.now_s = 9.0
    gate.table.start(back, gate.now_s, hit_tokens=300, block_size=16, reloaded_tokens=300)
    assert gate.waits(gate.arrive("c"))  # three would grow to 1,000 each


@pytest.mark.parametrize(
    ("stored", "loss_s"),
    [
        (None, 0.3),  # no tiers: the engine computes all
        (Stored(0), 0.3),
        (Stored(300), 0.3 * 0.5 * 0.3),  # memory for 0.3 s
        (Stored(200), 0.3 * 0.5 * 0.2 + 0.1),
        (Stored(300, 300), 0.3 * 0.5 * 1.2),  # from the SSD: 0.9 s more
    ],
)
@pytest.mark.parametrize(("waited_s", "kept"), [(0.0, True), (0.1, True), (9.0, True), (0.1, False)])
def test_a_hold_lasts_until_it_has_cost_as_much_as_a_loss(
    stored: Stored | None, loss_s: float, waited_s: float, kept: bool
) -> None:
    """300 tokens are 0.3 of the pool. With tiers the wait for room counts too: two programs inside lose half of it.

    If tiers did not keep what they had, all is computed again.
    """
    gate = Gate(machine=replace(TIERS, ssd_token_s=3e-3), worth=0.5, learn_tool_times=False)
    gate.finish(gate.arrive("b"))
    back = gate.arrive("b")
    gate.now_s += waited_s
    reloaded = 300 if kept else 0
    gate.table.start(back, gate.now_s, hit_tokens=reloaded, block_size=1, reloaded_tokens=reloaded)
    expected_s = min(0.3, loss_s + waited_s / 2) if kept else 0.3
    assert hold_after(gate, "a", stored) == pytest.approx(expected_s / (0.3 * 0.5))


def hold_after(gate: Gate, name: str, stored: Stored | None) -> float:
    """Seconds that the KV of a first turn of 300 tokens is held."""
    turn = gate.arrive(name)
    gate.table.start(turn, gate.now_s, 0, 16)
    hold = gate.table.finish(turn, gate.now_s, 300, 10, "ls", stored)
    return hold.ttl_s if hold is not None else 0.0


def test_what_memory_is_worth_comes_from_decode_steps() -> None:
    """Rebuilding 300 tokens takes 0.3 s, of 0.3 of the pool: held for a second over the worth."""
    for decode, hold_s in (
        (DecodeLine(0.01, 1e-5), 1 / 0.5),  # a step of 10 ms, 20 ms with the pool full
        (DecodeLine(0.01, 0.0), 1 / 1.0),
        (DecodeLine(0.0, 0.0), 1 / 0.27),  # says nothing
        (None, 1 / 0.27),
    ):
        gate = Gate(machine=replace(MACHINE, decode=decode))
        gate.finish(gate.arrive("a"))
        assert gate.table.pins["a"].deadline_s == pytest.approx(hold_s)


def test_without_a_prefill_curve_a_rebuild_is_not_free() -> None:
    gate = Gate(machine=replace(MACHINE, prefill=PrefillCurve(0.0, 0.0, 0.0)), worth=0.5)
    gate.finish(gate.arrive("a"))
    assert gate.table.pins["a"].deadline_s == pytest.approx(5.5e-5 * 1000 / 0.5, rel=0.02)


@pytest.mark.parametrize(("learn_tool_times", "worth"), [(True, 0.5 + 1.5), (False, 0.5)])
def test_memory_is_worth_more_while_programs_wait_for_their_tools(learn_tool_times: bool, worth: float) -> None:
    gate, holds_s = Gate(worth=0.5, learn_tool_times=learn_tool_times), []
    for _ in range(2):
        turn = gate.arrive("a")
        gate.table.start(turn, gate.now_s, 0, 16)
        gate.now_s += 1.0
        hold = gate.table.finish(turn, gate.now_s, 300, 10, "ls")
        holds_s.append(hold.ttl_s if hold else 0.0)
        gate.now_s += 1.5
    assert holds_s == [pytest.approx(1 / 0.5), pytest.approx(1 / worth)]  # away for 1.5 s, at work for 1


def test_nobody_waits_for_ever() -> None:
    """Three programs that never end hold the pool; one of those outside comes in every ten minutes."""
    gate, _ = full()
    for name in "de":
        gate.arrive(name)
    came: list[tuple[str, float]] = []
    while len(came) < 2:
        instant = gate.policy.next_event_s()
        assert instant is not None
        gate.now_s = instant + 1e-6
        came += [(name, round(gate.now_s, 3)) for name in gate.admitted()]
    assert came == [("d", 600.0), ("e", 1200.0)]


@pytest.mark.slow
def test_ten_thousand_programs_come_in_in_order() -> None:
    gate = Gate()
    turns = [gate.arrive(f"p{i}") for i in range(10_000)]
    assert sum(not gate.waits(turn) for turn in turns) == 3
    order = [turn.program.program_id for turn in turns[:3]]
    for turn in turns:
        turn.is_last = True
        gate.finish(turn)
        order += gate.admitted()
    assert order == [turn.program.program_id for turn in turns]
    assert gate.policy.next_event_s() is None


def test_without_admission_everybody_is_let_in() -> None:
    gate = Gate(share=0)
    assert not any([gate.waits(gate.arrive(f"p{i}")) for i in range(50)])
    for name, value in (("share", -1), ("learn_tool_times", 1), ("overtaking", -1)):
        with pytest.raises(PolicyError, match=name):
            read_options(find_policy("working-set"), {name: value})


# ------------------------------------------------------------------------------------------------- tool times


def away(times_s: Sequence[float]) -> RecentToolTimes:
    tool_times = RecentToolTimes(window=1024)
    for away_s in times_s:
        tool_times.add(away_s)
    return tool_times


@pytest.mark.parametrize(
    ("times_s", "even_s", "hold_s"),
    [
        ([0.1] * 31, 50.0, 50.0),  # too few to go by
        ([0.1] * 40, 50.0, 50.0),  # longer ones were not seen, nor are they ruled out
        ([0.1] * 40 + [90.0], 50.0, 0.125),  # a quarter longer than what is waited for
        ([0.1] * 40 + [90.0], 0.11, 0.11),
        ([30.0] * 40, 20.0, 0.0),  # nobody comes back in time
        ([0.5] * 80 + [60.0] * 20, 40.0, 0.625),  # 8.5 s held or rebuilt; 12.4 for waiting longer
        ([0.5] * 80 + [60.0] * 20 + [900.0], 300.0, 75.0),
    ],
)
def test_the_hold_is_the_cheapest_for_the_times_seen(times_s: list[float], even_s: float, hold_s: float) -> None:
    assert away(times_s).best_hold_s(even_s) == pytest.approx(hold_s)


@given(st.lists(st.floats(0.0, 1e3), min_size=32, max_size=64), st.floats(0.01, 1e3))
def test_no_hold_up_to_the_break_even_is_cheaper(times_s: list[float], even_s: float) -> None:
    def cost(tau_s: float) -> float:
        return sum(min(time_s, tau_s) + (even_s if time_s > tau_s else 0.0) for time_s in times_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecentToolTimes, "MARGIN", 1.0)
        hold_s = away(times_s).best_hold_s(even_s)
    assert 0.0 <= hold_s <= even_s
    best = min(cost(tau_s) for tau_s in [0.0, even_s, *(time_s for time_s in times_s if time_s <= even_s)])
    assert cost(hold_s) == pytest.approx(best)


@given(st.lists(st.integers(0, 40), min_size=32, max_size=400), st.integers(1, 60))
def test_the_hold_tried_first_of_the_cheapest(times_s: list[int], even_s: int) -> None:
    """Whole seconds, so that ties are ties: the break-even time first, then no hold, then every so many samples."""
    tool_times, known = away(times_s), sorted(times_s)
    number = sum(time_s <= even_s for time_s in known)
    step = max(1, number // RecentToolTimes.POINTS)

    def cost(within: int, tau_s: int) -> int:
        return sum(known[:within]) + (len(known) - within) * (tau_s + even_s)

    tried = [(number, even_s), (0, 0), *((i + 1, known[i]) for i in range(step - 1, number, step))]
    _, best_s = min(tried, key=lambda point: cost(*point))
    assert tool_times.best_hold_s(even_s) == min(even_s, best_s * RecentToolTimes.MARGIN)


def test_a_place_lost_early_is_no_program_finished() -> None:
    """After quick tools a hold is short; that a program outstays it says nothing of how far it has grown."""
    gate = Gate(worth=0.5)
    for away_s in (*[0.1] * 30, 90.0):
        gate.policy._holds.tool_times.add(away_s)
    gate.finish(gate.arrive("a", prompt=100), context=110)
    gate.now_s += 0.1  # the 32nd
    gate.arrive("a", prompt=600)
    gate.finish(gate.arrive("b", prompt=300), context=310)
    held_s = gate.table.pins["b"].deadline_s - gate.now_s
    assert held_s == pytest.approx(0.125)
    waiting = gate.arrive("c", prompt=300)
    assert gate.waits(waiting)
    gate.now_s += held_s + 0.001
    assert gate.admitted() == ["c"]
    assert gate.policy._inside.footprints.final_tokens(0) == 0.0
    gate.now_s += 2.0
    gate.admitted()
    assert gate.policy._inside.footprints.final_tokens(0) == 310.0


# ------------------------------------------------------------------------------------------------- forecast


def test_what_programs_will_need() -> None:
    footprints = Footprints(window=3)
    assert footprints.overflow_share([100, 200], 300.0) == 0.0  # nothing is known: nothing grows
    assert footprints.overflow_share([100, 201], 300.0) == 1.0
    for tokens in (10**6, 300, 500, 700):
        footprints.add(tokens)  # the first is out of the window
    assert footprints.final_tokens(0) == 500
    assert footprints.final_tokens(400) == 600
    assert footprints.final_tokens(700) == 700
    assert footprints.overflow_share([400], 600.0) == 0.0
    assert footprints.overflow_share([400], 500.0) == 0.5
    # 100 grows to 500, 600 to 700: 900 together when the one is gone, then what the other has left
    assert footprints.overflow_share([600, 100], 900.0) == 0.0
    assert footprints.overflow_share([600, 100], 800.0) == 50 / 400  # from 750 up to 900, then 200 to 500
    assert footprints.overflow_share([100, 600], 800.0) == 0.5
    assert footprints.overflow_share([100, 100], 600.0) == 0.5


@given(
    finals=st.lists(st.integers(1, 500), max_size=8),
    contexts=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    limit=st.integers(1, 2000),
)
def test_overflow_share_is_what_growing_in_small_steps_says(finals: list[int], contexts: list[int], limit: int) -> None:
    footprints = Footprints(window=8)
    for tokens in finals:
        footprints.add(tokens)
    growth = [(footprints.final_tokens(tokens) - tokens, tokens) for tokens in contexts]
    way, steps = growth[-1][0], 2000
    moments = [way * (step + 0.5) / steps for step in range(steps)]
    over = sum(sum(tokens + moment for left, tokens in growth if left >= moment) > limit for moment in moments)
    assert footprints.overflow_share(contexts, limit) == pytest.approx(over / steps, abs=len(contexts) * 2 / steps)
    assert footprints.overflow_share([50, *contexts], limit) >= footprints.overflow_share(contexts, limit)


def test_one_more_is_let_in_where_its_rebuilds_cost_less_than_it_brings() -> None:
    """Two grow from 100 to 600 in a pool of 1,000: on the last fifth of the way one of them does not fit."""
    for rebuild_token_s, waits in ((1e-3, False), (2e-2, True)):
        gate = Gate(
            replace(MACHINE, prefill=PrefillCurve(0.0, rebuild_token_s, 0.0)), worth=1.0, learn_tool_times=False
        )
        turn = gate.arrive("done", prompt=600)
        gate.table.start(turn, 0.0, 0, 16)
        gate.now_s = 1.0
        gate.table.finish(turn, 1.0, 600, 10, "ls")
        gate.finish(gate.arrive("done", prompt=600, last=True), context=600)
        gate.policy.turn_preempted(gate.arrive("plain", tagged=False), gate.now_s)
        assert not gate.waits(gate.arrive("a", prompt=100))
        # a turn takes a second, half of which is gained; rebuilding 350 tokens takes 0.35 or 7 s, a fifth of the time
        assert gate.waits(gate.arrive("b", prompt=100)) == waits


def test_a_program_that_changed_half_of_its_prompt_waits_like_a_newcomer() -> None:
    """It returns behind the first program outside, because it keeps only a part of its seniority."""
    gate, (first, *_) = full()
    blocks = [f"a{number}" for number in range(300)]
    gate.finish(first)
    first.program.marks = marks_of(blocks, 0)
    waiting = gate.arrive("d")
    for _ in range(20):
        gate.table.next_sequence()
    program = gate.table.program_for("a", gate.now_s, None, Prompt(300, [*blocks[:160], *"xyz"]))
    number = gate.table.next_sequence()
    back = TurnState(program, 0, "back", gate.now_s, 300, number, blocks=[*blocks[:160], *"xyz"])
    gate.table.arrive(back, gate.now_s)
    assert program is first.program
    assert gate.waits(back)
    assert gate.policy.position(waiting.program) < gate.policy.position(program)
    assert gate.admitted() == ["d"]
