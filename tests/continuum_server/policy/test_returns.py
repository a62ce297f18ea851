"""How often programs go on after a turn, as it is learned."""

from __future__ import annotations

import pytest
from continuum_server.policy.facts import ProgramState
from continuum_server.policy.returns import LEAST_S, PRIOR, Returns


def program(namespace: str | None = None) -> ProgramState:
    return ProgramState("p", 0.0, 1, namespace=namespace)


class Life:
    """Programs that answer every second, and go on after ``away_s``, or never."""

    def __init__(self, most_s: float = 600.0) -> None:
        self.returns, self.now_s = Returns(most_s), 0.0

    def answers(self, count: int, tool: str | None, away_s: float | None, namespace: str | None = None) -> None:
        due: list[tuple[float, ProgramState]] = []
        for _ in range(count):
            self.now_s += 1.0
            while due and due[0][0] <= self.now_s:
                self.returns.returned(due.pop(0)[1], self.now_s)
            each = program(namespace)
            self.returns.finished(each, tool, self.now_s)
            if away_s is not None:
                due.append((self.now_s + away_s, each))
        for at_s, each in due:
            self.now_s = max(self.now_s, at_s)
            self.returns.returned(each, self.now_s)

    def share(self, tool: str | None, namespace: str | None = None) -> float:
        return self.returns.share(program(namespace), tool, self.now_s)


def test_nothing_is_known_at_first() -> None:
    assert Life().share("bash") == Life().share(None) == 1.0


def test_programs_that_always_go_on_keep_a_share_of_exactly_one() -> None:
    life = Life()
    life.answers(300, "bash", away_s=5.0)
    assert life.share("bash") == 1.0


def test_answers_after_which_nobody_returns_are_told_from_the_others() -> None:
    life = Life()
    life.answers(200, "bash", away_s=2.0)
    life.answers(200, None, away_s=None)
    life.now_s += LEAST_S + 1.0
    assert life.share(None) < 0.05
    assert life.share("bash") == 1.0


def test_an_answer_counts_as_the_last_only_after_some_time() -> None:
    life = Life()
    life.answers(20, None, away_s=None)
    assert life.share(None) == 1.0
    life.now_s += LEAST_S + 1.0
    assert life.share(None) < 0.5


def test_who_comes_later_than_expected_counts_as_returned() -> None:
    life = Life()
    life.answers(100, "sleep", away_s=2.0 * LEAST_S)
    assert life.share("sleep") > 0.95


def test_slow_tools_are_waited_for_longer() -> None:
    """Once tools are known to take a minute, nobody counts as gone within it."""
    life = Life()
    life.answers(100, "build", away_s=60.0)
    before = life.share("build")
    life.answers(10, "build", away_s=None)
    life.now_s += 2.0 * LEAST_S
    assert life.share("build") >= before


def test_nobody_is_waited_for_longer_than_the_longest_hold() -> None:
    life = Life(most_s=50.0)
    life.answers(100, "build", away_s=45.0)
    life.answers(10, "build", away_s=None)
    life.now_s += 51.0
    assert life.share("build") < 0.95


def test_an_api_key_has_shares_of_its_own() -> None:
    life = Life()
    life.answers(100, "bash", away_s=2.0, namespace="good")
    life.answers(100, "bash", away_s=None, namespace="bad")
    life.now_s += LEAST_S + 1.0
    good, bad, new = (life.share("bash", key) for key in ("good", "bad", "new"))
    assert bad < 0.05 < new < good
    assert good > 1.0 - PRIOR / 100


def test_a_program_whose_end_was_told_is_no_sample() -> None:
    life, told = Life(), program()
    life.returns.finished(told, "bash", 0.0)
    life.returns.ended(told)
    life.now_s = 1e3
    assert life.share("bash") == 1.0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_hold_is_worth_the_share_that_returns(share: float) -> None:
    """With tools of 1 s, and a rebuild of 10 s. If all return, longer times than the known ones are possible."""
    from continuum_server.policy.tool_times import RecentToolTimes  # noqa: PLC0415

    times = RecentToolTimes(100)
    for _ in range(64):
        times.add(1.0)
    hold_s = times.best_hold_s(10.0, share)
    assert hold_s == {0.0: 0.0, 0.5: 1.25, 1.0: 10.0}[share]


@pytest.mark.parametrize("small", [True, False])
def test_first_answers_without_a_tool_are_learned_apart(small: bool) -> None:
    """After small prompts they are titles and single chats, unless programs are seen to go on after them."""
    life = Life()

    def first(goes_on: bool) -> bool:
        life.now_s += 1.0
        new = program()
        expected = life.returns.goes_on(new, small, life.now_s)
        if goes_on:
            life.returns.returned(new, life.now_s + 0.5)
        return expected

    unknown = 5 if small else 0
    assert [first(goes_on=True) for _ in range(20)] == [False] * unknown + [True] * (20 - unknown)
    for _ in range(60):
        first(goes_on=False)
    life.now_s += LEAST_S + 1.0
    assert not first(goes_on=False)
    assert life.share(None) == 1.0  # nothing is learned of later answers
