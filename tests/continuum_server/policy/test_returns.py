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
            self.returns.answered(each, tool, self.now_s)
            if away_s is not None:
                due.append((self.now_s + away_s, each))
        for at_s, each in due:
            self.now_s = max(self.now_s, at_s)
            self.returns.returned(each, self.now_s)

    def share(self, tool: str | None, namespace: str | None = None) -> float:
        return self.returns.share(program(namespace), tool, self.now_s)


SEES = list[tuple[int, str | None, float | None]]
"""So many answers, with this tool, after which programs are away for so long, or for ever."""
TOOLS: SEES = [(200, "bash", 2.0)]
ENDS: SEES = [(20, None, None)]
SLOW: SEES = [(100, "build", 60.0), (10, "build", None)]


@pytest.mark.parametrize(
    ("sees", "idle_s", "most_s", "tool", "low", "high"),
    [
        ([], 0.0, 600.0, "bash", 1.0, 1.0),  # nothing is known at first
        (TOOLS, 0.0, 600.0, "bash", 1.0, 1.0),  # programs that always go on keep a share of exactly one
        ([*TOOLS, (200, None, None)], LEAST_S + 1.0, 600.0, None, 0.0, 0.05),
        ([*TOOLS, (200, None, None)], LEAST_S + 1.0, 600.0, "bash", 1.0, 1.0),
        (ENDS, 0.0, 600.0, None, 1.0, 1.0),  # an answer counts as the last only after some time
        (ENDS, LEAST_S + 1.0, 600.0, None, 0.0, 0.5),
        ([(100, "sleep", 2.0 * LEAST_S)], 0.0, 600.0, "sleep", 0.95, 1.0),  # who comes late counts as returned
        (SLOW, 2.0 * LEAST_S, 600.0, "build", 1.0, 1.0),  # within a minute nobody counts as gone
        ([(100, "build", 45.0), *SLOW[1:]], 51.0, 50.0, "build", 0.0, 0.95),  # not waited for beyond the longest hold
    ],
)
def test_the_share_that_returns(
    sees: SEES, idle_s: float, most_s: float, tool: str | None, low: float, high: float
) -> None:
    life = Life(most_s)
    for answers in sees:
        life.answers(*answers)
    life.now_s += idle_s
    assert low <= life.share(tool) <= high


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
    life.returns.answered(told, "bash", 0.0)
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
