"""Which turn an arriving request is: by the client's id, else by the prompt of a try that ended badly."""

from __future__ import annotations

from continuum_server.policy.programs import RECENT, TurnNumbers
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import Driver


class Program:
    """Counts as the scheduler does."""

    def __init__(self) -> None:
        self.numbers = TurnNumbers()
        self.turns = 0

    def arrive(self, turn_id: str | None = None, prompt: object = None) -> int:
        number = self.numbers.arrived(turn_id, prompt, self.turns)
        self.turns = max(self.turns, number + 1)
        return number


def test_an_id_that_was_used_is_that_turn_again() -> None:
    p = Program()
    assert [p.arrive(name, "prompt") for name in ("a", "b", "a", "c", "b", "c", "d")] == [0, 1, 0, 2, 1, 2, 3]


def test_without_an_id_the_prompt_of_a_failed_try_is_that_turn_again() -> None:
    p = Program()
    assert p.arrive(prompt="x") == 0
    assert p.arrive(prompt="x") == 1  # the first runs: two calls side by side
    p.numbers.failed(0, "x")
    assert p.arrive(prompt="y") == 2
    assert p.arrive(prompt="x") == 0
    assert p.arrive(prompt="x") == 3  # that turn has its try


def test_two_equal_prompts_that_both_failed_are_two_turns_again() -> None:
    p = Program()
    for number in (p.arrive(prompt="x"), p.arrive(prompt="x")):
        p.numbers.failed(number, "x")
    assert [p.arrive(prompt="x") for _ in range(3)] == [0, 1, 2]


def test_a_turn_may_fail_many_times() -> None:
    p = Program()
    p.arrive(prompt="w")
    for _ in range(50):
        assert p.arrive(prompt="x") == 1
        p.numbers.failed(1, "x")
    assert p.turns == 2


def test_an_id_is_stronger_than_a_prompt() -> None:
    p = Program()
    p.arrive("a", "x")
    p.numbers.failed(0, "x")
    assert p.arrive("b", "x") == 1  # the client says that this is another turn
    assert p.arrive(None, "x") == 0  # and here it says nothing


steps = st.tuples(st.none() | st.sampled_from("abcd"), st.sampled_from("xyz"), st.booleans())


@given(st.lists(steps, max_size=60))
def test_numbers_are_dense_and_ids_keep_theirs(arrivals: list[tuple[str | None, str, bool]]) -> None:
    p, by_id = Program(), {}
    for turn_id, prompt, fails in arrivals:
        before = p.turns
        number = p.arrive(turn_id, prompt)
        assert 0 <= number <= before  # none is skipped
        if turn_id is not None:
            assert by_id.setdefault(turn_id, number) == number
        if fails:
            p.numbers.failed(number, prompt)
    assert len(set(by_id.values())) <= p.turns


@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.integers(0, 50), st.booleans()), max_size=200))
def test_memory_is_bounded(arrivals: list[tuple[str | None, int, bool]]) -> None:
    p = Program()
    for turn_id, prompt, fails in arrivals:
        number = p.arrive(turn_id, prompt)
        if fails:
            p.numbers.failed(number, prompt)
    assert len(p.numbers._by_id) <= RECENT
    assert len(p.numbers._failed) <= RECENT


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=30))
def test_a_client_with_ids_is_never_misjoined(tries: list[tuple[int, int]]) -> None:
    """A sequential agent whose every turn breaks so many times: the server's numbers are the client's."""
    p = Program()
    for turn, (broken, prompt) in enumerate(tries):
        for _ in range(broken):
            assert p.arrive(f"{turn}-f00", prompt) == turn
            p.numbers.failed(turn, prompt)
        assert p.arrive(f"{turn}-f00", prompt) == turn


def test_a_turn_tried_again_is_no_tool_time() -> None:
    """Its answer was lost on the way to the client: what passed until it came again was no tool."""
    driver = Driver("continuum")
    driver.turn("p", gap_s=1.0)
    driver.finish(driver.start(driver.arrive("p", turn_id="one")))
    driver.now_s += 0.5
    again = driver.arrive("p", turn_id="one")
    assert again.index == 1
    driver.finish(driver.start(again))
    driver.now_s += 1.0
    assert driver.arrive("p").index == 2
    assert driver.table.policy.state()["tools"] == {"ls": 2}
