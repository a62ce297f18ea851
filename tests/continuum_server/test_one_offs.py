"""One-offs on vLLM's scheduler: requests that belong to no conversation run before programs, within their share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy import one_offs
from continuum_server.policy.one_offs import ONE_OFFS_SHARE, RECENT_TURNS
from continuum_server.policy.order import Class, Place
from continuum_server.policy.program_table import Guards
from continuum_server.vllm_plugin.queue import PlacedQueue
from continuum_traces.playing.conversation import Job
from hypothesis import given
from hypothesis import strategies as st
from nano import each_policy, mean_jct_s, play, program
from policy_driver import MACHINE, Driver

RANKED = ["program-fcfs", "continuum", "working-set", "concur"]
FCFS = Guards(one_offs="fcfs")


@pytest.fixture(autouse=True)
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine here is so small that its work in a test is a fraction of a second."""
    monkeypatch.setattr(one_offs, "WINDOW_S", WINDOW_S)


WINDOW_S = 0.4


def agents(count: int = 8, turns: int = 16, every_s: float = 0.5) -> list[Job]:
    """Programs that fill a pool of 120 blocks several times over."""
    return [Job(program(f"agent-{i}", turns=turns, new=64, output=24, tool_s=0.3), every_s * i) for i in range(count)]


def chats(count: int = 20, first_s: float = 40.0, every_s: float = 1.0, output: int = 8) -> list[Job]:
    made = [replace(program(f"chat-{i}", turns=1, new=60, output=output), tagged=False) for i in range(count)]
    return [Job(each, first_s + every_s * i) for i, each in enumerate(made)]


@each_policy(RANKED)
def test_chats_beside_agents_are_no_slower_than_under_stock_vllm(policy: str) -> None:
    jobs = [*agents(), *chats(first_s=6.0, every_s=0.5)]
    stock, papers, ours = (
        play(jobs, blocks=121),
        play(jobs, policy, blocks=121, guards=FCFS),
        play(jobs, policy, blocks=121),
    )
    assert mean_jct_s(ours, "chat") <= 1.1 * mean_jct_s(stock, "chat")
    most = 1.02 if policy == "working-set" else 1.0  # under which newcomers come first without this rule too, as guests
    assert mean_jct_s(ours, "chat") <= most * mean_jct_s(papers, "chat")
    assert mean_jct_s(ours, "agent") <= 1.1 * mean_jct_s(papers, "agent")


def test_a_flood_of_chats_starves_no_agent() -> None:
    """Chats arrive faster than the engine serves them; agents go on at their share, as under stock order or faster."""
    jobs = [*agents(3, 6), *chats(300, first_s=2.0, every_s=0.01, output=16)]
    stock, ours = play(jobs, blocks=121), play(jobs, "working-set", blocks=121)
    assert mean_jct_s(ours, "agent") <= 1.2 * mean_jct_s(stock, "agent")


def took(driver: Driver, name: str, seconds: float, tagged: bool) -> None:
    """A turn whose prefill takes so many engine seconds."""
    turn = driver.arrive(name, prompt=round(seconds * 1000), tagged=tagged)
    driver.finish(driver.start(turn), context=0)


@pytest.mark.parametrize(("mode", "gives_way"), [("first", True), ("fcfs", False)])
def test_a_hold_gives_way_to_a_one_off_while_one_offs_are_first(mode: Any, gives_way: bool) -> None:
    driver = Driver("static-ttl", guards=Guards(one_offs=mode), ttl_s=100.0)
    took(driver, "agent", 0.2 * WINDOW_S, tagged=True)
    chat = driver.arrive("chat", 5000, tagged=False)
    assert driver.table.order.yielding(chat, must_free=False) == ([driver.table.pins["agent"]] if gives_way else [])


def test_one_offs_are_first_while_they_take_less_than_their_share() -> None:
    driver = Driver("program-fcfs", guards=Guards())
    assert not driver.table.one_offs.first(None)  # nothing is known yet
    took(driver, "agent", 0.2 * WINDOW_S, tagged=True)
    assert driver.table.one_offs.first(None)
    for number in range(100):
        took(driver, f"chat-{number}", 0.05 * WINDOW_S, tagged=False)
    assert not driver.table.one_offs.first(None)
    for number in range(100):  # agents take twice what is left of the share
        took(driver, "agent", (1.0 - ONE_OFFS_SHARE) * 0.2 * WINDOW_S, tagged=True)
        took(driver, f"chat-{number}", ONE_OFFS_SHARE * 0.1 * WINDOW_S, tagged=False)
    assert driver.table.one_offs.first(None)
    assert not Driver("program-fcfs", guards=FCFS).table.one_offs.first(None)


def test_small_first_turns_are_one_offs_only_if_few_of_them_go_on() -> None:
    small, large = MACHINE.kv_tokens // 64, MACHINE.kv_tokens // 64 + 1
    driver = Driver("program-fcfs", guards=Guards())
    assert not driver.arrive("agent", prompt=small).one_off
    assert driver.arrive("single", prompt=small, last=True).one_off
    assert not driver.arrive("large", prompt=large, last=True).one_off
    assert driver.arrive("untagged", prompt=large, tagged=False).one_off
    for number in range(3 * RECENT_TURNS):
        driver.turn(f"chat-{number}")
    turn = driver.arrive("new", prompt=small)
    assert turn.one_off
    driver.finish(driver.start(turn))
    assert not driver.arrive("new", prompt=small).one_off  # its second turn
    for number in range(3 * RECENT_TURNS):
        driver.turn(f"agent-{number}")
        driver.turn(f"agent-{number}")
    for number in range(3 * RECENT_TURNS):  # sub-agents count neither way
        driver.finish(driver.start(driver.arrive(f"child-{number}", parent="new", prompt=small)))
    assert not driver.arrive("later", prompt=small).one_off


def test_programs_with_many_turns_count_as_going_on_once() -> None:
    """One of eight programs goes on, for 20 turns. It counts once, so new programs are expected to be one-offs."""
    driver = Driver("program-fcfs", guards=Guards())
    for number in range(3 * RECENT_TURNS):
        for _ in range(20 if number % 8 == 0 else 1):
            driver.turn(f"program-{number}")
    assert driver.arrive("new").one_off


def test_an_aborted_answer_counts_as_work_of_one_offs() -> None:
    driver = Driver("program-fcfs", guards=Guards())
    took(driver, "agent", 0.2 * WINDOW_S, tagged=True)
    assert driver.table.one_offs.first(None)
    for number in range(100):
        turn = driver.start(driver.arrive(f"chat-{number}", prompt=1, tagged=False))
        driver.table.abort(turn, 1, round(0.05 * WINDOW_S * 1000))
    assert not driver.table.one_offs.first(None)


def test_named_one_offs_are_learned_per_key_and_soon() -> None:
    driver = Driver("program-fcfs", guards=Guards())
    first = []
    for number in range(20):
        turn = driver.arrive(f"chat-{number}", prompt=100, key="chats")
        first.append(turn.one_off)
        driver.finish(turn)
    assert first == [False] * 13 + [True] * 7
    assert not driver.arrive("agent", prompt=100, key="agents").one_off
    assert not driver.arrive("agent", prompt=100).one_off


@each_policy(["program-fcfs"])
def test_a_target_for_first_tokens_lets_newcomers_in(policy: str) -> None:
    jobs = agents(12, 14, every_s=0.8)

    def worst_s(guards: Guards) -> float:
        played = play(jobs, policy, blocks=121, guards=guards)
        return max((t.first_token_s or 0.0) - t.due_s for t in played.turns if t.turn == 0)

    without, target_s = worst_s(Guards()), 2.0
    assert without > 2.0 * target_s
    assert worst_s(Guards(first_token_s=target_s)) < 1.5 * target_s


class Waiting:
    """A waiting request, and its place."""

    def __init__(self, number: int, kind: Class, rank: float, tenant: str, one_off: bool) -> None:
        self.request_id, self.arrival_time = str(number), float(number)
        self.place = Place(0.0, kind, (rank,), number, tenant, one_off)


KINDS = [(kind, False) for kind in (Class.OVERDUE, Class.PINNED, Class.REST, Class.HELD_BACK)]
ENTRIES = st.tuples(st.sampled_from([*KINDS, (Class.REST, True)]), st.integers(0, 9), st.sampled_from(["a", "b"])).map(
    lambda drawn: (drawn[0][0], drawn[1], drawn[2], drawn[0][1])
)
"""Places that an ``Order`` gives: a one-off is in the class of the rest, or its line would not keep its order."""


@pytest.mark.parametrize(("tagged", "kind"), [(True, Class.PINNED), (False, Class.REST)])
def test_a_one_off_is_in_the_class_of_the_rest_even_if_kv_is_pinned(tagged: bool, kind: Class) -> None:
    driver = Driver("static-ttl", guards=Guards(), ttl_s=100.0)
    driver.turn("a")
    turn = driver.arrive("a", tagged=tagged)
    assert driver.table.pins.firm(turn.program) is not None
    place = driver.table.order.place(turn)
    assert (place.kind, place.one_off) == (kind, not tagged)
    turn.overdue = True
    assert driver.table.order.place(turn)[1:3] == (Class.OVERDUE, ())
    assert not driver.table.order.place(turn).one_off


def test_the_request_that_was_peeked_at_is_popped_although_another_is_first_by_then() -> None:
    """Between the two vLLM makes room for it. What is released then may change whose turn it is."""
    ahead = ["a"]
    queue = PlacedQueue(
        lambda request: request.place,  # type: ignore[attr-defined]
        lambda places: next(place for place in places if place.tenant in ahead),
        lambda: len(ahead),
    )
    made = [Waiting(number, Class.REST, 0.0, tenant, False) for number, tenant in enumerate("ab")]
    for request in made:
        queue.add_request(request)  # type: ignore[arg-type]
    assert queue.peek_request() is made[0]
    ahead.insert(0, "b")
    ahead.pop()
    ahead.append("b")
    assert queue.peek_request() is made[1]
    ahead[:] = ["a"]
    assert queue.pop_request() is made[1]
    assert queue.pop_request() is made[0]


def test_a_request_that_has_left_since_it_was_peeked_at_is_not_popped() -> None:
    queue = PlacedQueue(lambda request: request.place, min)  # type: ignore[attr-defined]
    made = [Waiting(number, Class.REST, 0.0, "a", False) for number in range(2)]
    for request in made:
        queue.add_request(request)  # type: ignore[arg-type]
    assert queue.peek_request() is made[0]
    queue.remove_request(made[0])  # type: ignore[arg-type]
    assert queue.pop_request() is made[1]


@pytest.mark.parametrize(("again", "kept"), [(65, 67), (66, 2), (67, 3)])
def test_of_places_that_changed_few_are_kept(again: int, kept: int) -> None:
    """Up to 64 beside twice as many as requests wait."""
    queue = PlacedQueue(lambda request: request.place, min)  # type: ignore[attr-defined]
    for number in range(2):
        queue.add_request(Waiting(number, Class.REST, 0.0, "a", False))  # type: ignore[arg-type]
    for _ in range(again):
        queue.place_again("1")
    (line,) = queue._lines.values()
    assert len(line.heap) == kept


@given(entries=st.lists(ENTRIES), first=st.lists(st.booleans(), min_size=1))
def test_the_queue_is_in_the_order_of_places(entries: list[tuple[Class, int, str, bool]], first: list[bool]) -> None:
    """While one-offs are first, they come before all programs but overdue ones; else by their ranks."""
    now = [first[0]]

    def key(place: Place) -> tuple[object, ...]:
        one_off = place.one_off and place.kind is Class.REST and now[0]
        return (Class.ONE_OFF if one_off else place.kind, place.rank, place.number)

    queue = PlacedQueue(lambda request: request.place, lambda places: min(places, key=key))  # type: ignore[attr-defined]
    made = [Waiting(number, *entry) for number, entry in enumerate(entries)]
    for request in made:
        queue.add_request(request)  # type: ignore[arg-type]
    assert [*queue][len(made) - sum(each.place.kind is Class.HELD_BACK for each in made) :] == [
        each for each in made if each.place.kind is Class.HELD_BACK
    ]
    left = [request for request in made if request.place.kind is not Class.HELD_BACK]
    for turn in range(len(left)):
        now[0] = first[turn % len(first)]
        left.sort(key=lambda request: key(request.place))
        assert queue.pop_request() is left.pop(0)
    assert not queue
    assert len(queue) == sum(each.place.kind is Class.HELD_BACK for each in made)
