"""Fair sharing between API keys: what is charged, who may go on, and which pins yield."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy.facts import Machine, PrefillCurve, TurnState
from continuum_server.policy.program_table import Guards
from continuum_server.policy.tenants import Claim
from policy_driver import Driver

MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=1000)
"""A filling of the pool takes a second: this is the lag."""
TICK_S = 0.25


def driver(policy: str = "static-ttl", **guards: Any) -> Driver:
    options = {"ttl_s": 100.0} if policy == "static-ttl" else {}
    return Driver(policy, MACHINE, Guards(max_ttl_s=1e9, max_pinned_share=1.0, one_offs="fcfs", **guards), **options)


def tick(on: Driver, seconds: float) -> list[TurnState]:
    on.now_s += seconds
    return on.table.overdue(on.now_s)


def virtual_s(on: Driver, key: str | None) -> float:
    return round(on.table.tenants.virtual_s(key), 9)


def ran(on: Driver, key: str, prompt: int, hit: int = 0, name: str = "p") -> TurnState:
    """A request that starts at once."""
    return on.start(on.arrive(name, prompt, key=key), hit_tokens=hit)


def test_a_prompt_costs_what_was_not_cached() -> None:
    on = driver()
    ran(on, "a", 500, hit=200)
    assert virtual_s(on, "a") == 0.3


@pytest.mark.parametrize("how", ["finish", "abort", "preempt"])
def test_memory_costs_its_share_for_as_long_as_it_is_held(how: str) -> None:
    """However a request ends, between two ticks too, and in the part of a tick in which it ran."""
    on = driver("vllm")
    on.arrive("q", key="b")
    on.arrive("q2", key="a")
    tick(on, TICK_S / 2)
    turn = ran(on, "a", 500, hit=500)
    tick(on, TICK_S)  # 1.5 ticks after the beginning: memory is charged
    assert virtual_s(on, "a") == 0.5 * TICK_S
    on.now_s += 0.1
    if how == "finish":
        on.finish(turn)
    elif how == "preempt":
        on.table.preempt(turn, on.now_s)
    else:
        on.table.abort(turn, 500, 10, on.now_s)
    assert virtual_s(on, "a") == 0.5 * (TICK_S + 0.1)
    tick(on, 1.0)
    assert virtual_s(on, "a") == 0.5 * (TICK_S + 0.1)


def test_a_seat_costs_something_even_with_a_tiny_context() -> None:
    on = driver("vllm")
    on.table.tenants.seats = 4
    on.arrive("q", key="b")
    ran(on, "a", 1, hit=1)
    tick(on, 1.0)
    assert virtual_s(on, "a") == 0.25


def test_a_pin_costs_its_share_unless_its_program_waits() -> None:
    on = driver(policy="static-ttl")
    on.arrive("q", key="b")
    on.arrive("q", key="c")
    on.finish(ran(on, "a", 100, hit=100), context=400)
    before_s = virtual_s(on, "a")
    tick(on, 1.0)
    assert virtual_s(on, "a") - before_s == pytest.approx(0.4)
    on.arrive("p", 400, key="a")
    tick(on, 1.0)
    assert virtual_s(on, "a") - before_s == pytest.approx(0.4)


def test_weights_divide_what_a_key_is_charged() -> None:
    on = driver()
    on.start(on.arrive("p", 600, key="a", weight=3.0))
    assert virtual_s(on, "a") == 0.2
    on.arrive("p", 1000, key="b")
    on.arrive("q", 200, key="a", weight=3.0)
    assert on.table.tenants.fair("a") == 750
    assert on.table.tenants.fair("b") == 250


@pytest.mark.parametrize(
    ("wants", "shares"),
    [
        ((1000, 1000), (500, 500)),
        ((400, 599), (1000, 1000)),  # all fit
        ((400, 600), (600, 600)),
        ((400, 601), (600, 600)),
        ((100, 100, 900), (800, 800, 800)),
        ((300, 400, 400), (350, 350, 350)),
        ((*[20] * 9, 900, 900), [410] * 11),  # nine small streams leave the others nearly half each
    ],
)
def test_what_a_key_does_not_want_is_for_the_others(wants: tuple[int, ...], shares: Sequence[int]) -> None:
    """A share is what a key may hold, whatever it wants itself."""
    on = driver("vllm")
    for key, tokens in enumerate(wants):
        on.arrive("p", tokens, key=str(key))
    assert [on.table.tenants.fair(str(key)) for key in range(len(wants))] == pytest.approx(shares)


def test_a_pin_is_wanted_once() -> None:
    """A waiting prompt begins with its program's pin."""
    on = driver()
    held(on, "a", 600, name="p")
    on.arrive("p", 700, key="a")
    on.arrive("q", 301, key="b")
    assert on.table.tenants.fair("a") == 699


def test_an_idle_key_wants_nothing() -> None:
    on = driver("vllm")
    first, second = ran(on, "a", 400), ran(on, "b", 700)
    shares = lambda: {row["key"]: row["fair_share"] for row in on.table.tenants.rows(on.now_s)}  # noqa: E731
    assert shares() == {"a": 0.6, "b": 0.6}
    on.finish(first, context=0)
    assert shares() == {"a": 1.0, "b": 1.0}
    on.finish(second, context=0)
    assert shares() == {"a": 1.0, "b": 1.0}


def test_a_key_saves_nothing_up_while_it_is_idle() -> None:
    on = driver("vllm")
    ran(on, "b", 900)
    on.finish(ran(on, "a", 0, name="before"), context=0)
    on.arrive("p", key="c")
    assert virtual_s(on, "c") == 0.9  # as b, the only key that was active
    on.arrive("p", key="a")
    assert virtual_s(on, "a") == 0.9


@pytest.mark.parametrize("found_room", [True, False])
def test_time_passes_to_the_key_of_a_turn_that_finds_no_room(found_room: bool) -> None:
    """Small streams of two keys, of which one always runs, would otherwise come before it for ever."""
    on = driver("vllm")
    ran(on, "b", 0, name="stream")
    ran(on, "a", 900)
    on.arrive("giant", 1000, key="a")
    if not found_room:
        on.table.tenants.came_first()
    on.arrive("stream", 0, key="c")
    assert virtual_s(on, "c") == (0.0 if found_room else 0.9)


@pytest.mark.parametrize(("ahead", "saved"), [(2500, 1.5), (900, 0.0)])
def test_a_key_of_which_only_a_stream_runs_saves_a_lag_up(ahead: int, saved: float) -> None:
    """Otherwise it could take the whole engine for as long as the stream ran."""
    on = driver("vllm")
    ran(on, "a", 0, name="stream")
    ran(on, "b", ahead)
    on.start(on.arrive("q", key="b"))
    on.arrive("p", key="a")
    assert virtual_s(on, "a") == pytest.approx(saved)


@pytest.mark.parametrize(("context", "saved"), [(400, 1.0), (0, 0.0)])
def test_a_key_whose_programs_are_between_turns_saves_a_lag_up(context: int, saved: float) -> None:
    """Otherwise agents would lose what they are behind at each tool call."""
    on = driver()
    on.finish(ran(on, "b", 0, name="agent"), context=context)
    ran(on, "a", 2500)
    on.start(on.arrive("q", 0, key="a"))
    on.arrive("agent", context, key="b")
    assert virtual_s(on, "a") - virtual_s(on, "b") == pytest.approx(saved)


def test_a_key_that_is_idle_keeps_what_it_owes() -> None:
    on = driver("vllm")
    ran(on, "b", 100)
    on.finish(ran(on, "a", 800), context=0)
    on.arrive("p", key="a")
    assert virtual_s(on, "a") == 0.9


def test_the_lag_is_a_pool_of_prompts_of_8192_tokens() -> None:
    """Half a prompt takes a quarter of the time. ``key_lag`` says how many such pools."""
    machine = Machine(PrefillCurve(1e-6, 0.0, 5.0), kv_tokens=2 * 8192)
    lags = [Driver("vllm", machine, Guards(key_lag=lag)).table.tenants.lag_s for lag in (1.0, 2.5)]
    assert lags == pytest.approx([2 * 8192**2 * 1e-6, 5 * 8192**2 * 1e-6])


def test_keys_within_the_lag_compete() -> None:
    on = driver("vllm")
    on.arrive("q", key="b")
    for tokens, both in ((999, True), (1, True), (1, False)):  # below, at and above a second
        ran(on, "a", tokens, name=f"p{tokens}")
        assert set(on.table.tenants.within_lag(["a", "b"])) == ({"a", "b"} if both else {"b"})


def first_of(on: Driver, *turns: TurnState) -> TurnState:
    places = {on.table.order.place(turn): turn for turn in turns}
    return places[on.table.order.first(places)]


def test_the_next_turn_is_the_first_of_those_keys() -> None:
    on = driver("program-fcfs")
    first, second = (on.arrive("p", key=key) for key in "ab")
    assert first_of(on, first, second) is first
    ran(on, "a", 1001, name="q")
    assert first_of(on, first, second) is second


@pytest.mark.parametrize("guards", [{"fair": "none"}, {"key_lag": 2.0}])
def test_without_fair_sharing_or_within_a_longer_lag_keys_do_not_matter(guards: dict[str, Any]) -> None:
    on = driver("program-fcfs", **guards)
    first, second = (on.arrive("p", key=key) for key in "ab")
    ran(on, "a", 1001, name="q")
    assert first_of(on, first, second) is first


@pytest.mark.parametrize(("ahead", "yields"), [(999, ""), (1000, ""), (1001, "a")])
def test_pins_of_waiting_turns_of_a_key_ahead_yield(ahead: int, yields: str) -> None:
    """Its turns come after those of the other key, although they were placed before them."""
    on = driver(pins_yield_to="waiting")
    on.table.tenants.seats = 10**30
    ran(on, "b", 10, hit=10)
    held(on, "a", 300)
    on.arrive("held", 300, key="a")
    asker = on.arrive("p", 600, key="b")  # more than its share: it has no claim
    ran(on, "a", ahead, name="more")
    assert [pin.program.namespace for pin in on.table.order.yielding(asker, must_free=False)] == [*yields]


def held(on: Driver, key: str, tokens: int, name: str = "held") -> None:
    on.finish(ran(on, key, tokens, hit=tokens, name=name), context=tokens)


def test_a_key_ahead_gives_up_what_it_holds_beyond_its_share() -> None:
    """To a request that stays within its own key's share. The policy alone releases none of these pins."""
    on = driver()
    held(on, "a", 501)
    ran(on, "b", 100, hit=100)
    asker = on.arrive("p", 400, key="b")
    assert on.table.order.yielding(asker, must_free=False) == []  # the policy's answer
    ran(on, "a", 1001, hit=0, name="more")
    claim = on.table.tenants.claim
    assert claim(asker, "a") is Claim.ALWAYS
    assert [pin.program.namespace for pin in on.table.order.yielding(asker, must_free=False)] == ["a"]
    assert claim(replace_prompt(asker, 401), "a") is Claim.AS_THE_POLICY


def test_a_key_ahead_keeps_pins_within_its_share() -> None:
    on = driver()
    ran(on, "b", 10, hit=10)
    asker = on.arrive("p", 490, key="b")
    on.arrive("q", 100, key="b")
    held(on, "a", 500)
    on.finish(ran(on, "a", 1001, name="more"), context=0)
    assert on.table.tenants.claim(asker, "a") is Claim.AS_THE_POLICY
    held(on, "a", 1, name="one")
    assert on.table.tenants.claim(asker, "a") is Claim.ALWAYS


def test_a_key_of_which_nothing_runs_takes_its_own_pins() -> None:
    """And those of a key ahead only beyond its share: a key that comes and goes would take them again and again."""
    on = driver()
    held(on, "b", 300)
    asker = on.arrive("p", 200, key="b")
    held(on, "a", 500)
    assert on.table.order.yielding(asker, must_free=False) == []
    on.table.abort(ran(on, "a", 1001, name="more"))
    assert [pin.program.namespace for pin in on.table.order.yielding(asker, must_free=False)] == ["b"]
    held(on, "a", 1, name="one")
    assert [pin.program.namespace for pin in on.table.order.yielding(asker, must_free=False)] == ["a", "a", "b"]


def test_a_key_ahead_takes_a_pin_of_a_key_behind_only_if_it_must() -> None:
    """A one-off comes before the program whose tool runs, unless its key is ahead."""
    on = Driver("static-ttl", MACHINE, Guards(max_ttl_s=1e9, max_pinned_share=1.0), ttl_s=1e9)
    held(on, "b", 300)
    asker = on.arrive("p", 100, key="a", tagged=False)
    on.table.one_offs._taken["a"] = 0.0
    assert len(on.table.order.yielding(asker, must_free=False)) == 1
    ran(on, "a", 1001, name="more")
    assert on.table.order.yielding(asker, must_free=False) == []
    assert len(on.table.order.yielding(asker, must_free=True)) == 1


def test_a_key_ahead_loses_running_turns_beyond_its_share() -> None:
    """The latest first, to a turn that stays within its own key's share."""
    on = driver("vllm")
    asker = on.arrive("p", 500, key="b")
    turns = [ran(on, "a", 300, name=f"p{number}") for number in range(3)]
    overrun = on.table.tenants.overrun
    assert overrun(asker) == []  # 0.9 s ahead
    on.finish(ran(on, "a", 100, name="q"), context=0)
    assert overrun(asker) == []  # the lag
    on.finish(ran(on, "a", 1, name="r"), context=0)
    assert overrun(asker) == turns[:0:-1]  # 900 tokens, of which 500 are its share
    assert on.table.order.preempted_for(asker, [], on.now_s) == turns[:0:-1]
    assert overrun(replace_prompt(asker, 501)) == turns[:0:-1]  # the only one of its key
    assert overrun(replace_prompt(asker, 701)) == turns[::-1]
    on.finish(turns[2], context=0)
    assert overrun(asker) == [turns[1]]
    on.finish(turns[1], context=0)
    assert overrun(asker) == []


def test_a_key_keeps_running_turns_that_are_its_share() -> None:
    on = driver("vllm")
    asker, other = on.arrive("p", 400, key="b"), ran(on, "b", 100, hit=100)
    turn = ran(on, "a", 500)
    on.finish(ran(on, "a", 1501, name="q"), context=0)
    assert on.table.tenants.overrun(asker) == []
    more = ran(on, "a", 1, name="r")
    assert on.table.tenants.overrun(asker) == [more]
    assert on.table.tenants.overrun(replace_prompt(asker, 401)) == []
    assert {turn.running, other.running} == {True}


def test_of_several_keys_ahead_the_first_loses_first() -> None:
    on = driver("vllm")
    asker = on.arrive("p", 300, key="b")
    far, near = ran(on, "a", 400), ran(on, "c", 400)
    for key, tokens in (("a", 2000), ("c", 1900)):
        on.finish(ran(on, key, tokens, name="q"), context=0)
    assert on.table.tenants.overrun(asker) == [far, near]


class TestStepTokens:
    """While the key with the least virtual time only decodes, prompts of other keys are computed in small parts."""

    MOST = 2048

    def engine(self) -> Driver:
        on = driver("vllm")
        ran(on, "b", 1, name="stream")
        ran(on, "a", 900)
        return on

    def tokens(self, on: Driver, most: int = MOST, **decode: int) -> int:
        """``decode``: the tokens that a key's turns decode."""
        decodes = lambda turn: bool(decode[str(turn.program.namespace)])  # noqa: E731
        return on.table.tenants.step_tokens(most, lambda: sum(decode.values()), decodes)

    def test_256_beside_what_is_decoded(self) -> None:
        on = self.engine()
        assert self.tokens(on, a=0, b=1) == 257
        on.arrive("q", key="b")
        assert self.tokens(on, a=1, b=3) == 260
        assert self.tokens(on, most=256, a=0, b=1) == 256

    def test_all_while_the_key_computes_a_prompt_or_only_waits(self) -> None:
        assert self.tokens(self.engine(), a=1, b=0) == self.MOST
        on = driver("vllm")
        on.arrive("q", key="b")
        ran(on, "a", 900)
        assert self.tokens(on, a=0) == self.MOST

    def test_all_for_the_key_that_was_given_more(self) -> None:
        on = self.engine()
        on.finish(ran(on, "b", 1000, name="q"), context=0)
        assert self.tokens(on, a=0, b=1) == self.MOST

    def test_all_for_a_single_key(self) -> None:
        on = driver("vllm")
        on.table.abort(on.arrive("q", key="b"))
        ran(on, "a", 900)
        assert self.tokens(on, a=1) == self.MOST


def test_one_key_or_none_needs_no_ticks() -> None:
    on = driver()
    ran(on, "a", 100)
    on.arrive("q", key="a")
    assert on.table.tenants.next_s == float("inf")
    on.arrive("q", key="b")
    assert on.table.tenants.next_s == TICK_S


def test_keys_that_owe_nothing_are_forgotten() -> None:
    """When another key comes: those that are no further than the keys that wait, and all if nothing runs or waits."""
    on = driver("vllm")
    keys = lambda: "".join(sorted(str(tenant.key) for tenant in on.table.tenants))  # noqa: E731
    waits, runs = on.arrive("q", key="b"), ran(on, "b", 1000, name="r")
    on.finish(ran(on, "a", 10), context=0)
    more = ran(on, "b", 1000, name="s")
    on.table.abort(on.arrive("p", key="c"))
    assert keys() == "abc"  # a has 1.01 s, and what waits 1.0
    on.table.abort(ran(on, "b", 1000, name="t"))
    on.table.abort(on.arrive("p", key="d"))
    assert keys() == "bd"
    for turn in (waits, runs, more):
        on.table.abort(turn)
    on.table.abort(on.arrive("p", key="e"))
    assert keys() == "e"


def replace_prompt(turn: TurnState, tokens: int) -> TurnState:
    return replace(turn, prompt_tokens=tokens)
