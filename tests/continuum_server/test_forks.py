"""Forks of a whole conversation by an agent that sends no ids, beside load that fills the pool: on stock vLLM and here.

Three sub-agents begin with all that their parent said and heard. When they have ended, the parent goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.server_config import STOCK
from live_server import BLOCK, Live, cached, continued, live, tokens
from waiting import until

pytestmark = pytest.mark.slow

FORKS, TURNS = 3, 3
POOL: dict[str, Any] = {"kv_blocks": 1200, "block_size": BLOCK, "max_model_len": 16_000}
POLICIES: dict[str, dict[str, Any]] = {
    STOCK: {"policy": STOCK},
    "static-ttl": {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}},
}
"""Stock vLLM, and holds that outlast the test on any machine."""


class Agent:
    """What is said to the server, and the share of each prompt that was cached."""

    def __init__(self, server: Live) -> None:
        self._server = server
        self._seeds = count(1000)

    def crowd(self) -> None:
        """Requests that together fill the pool, and of which nothing is held."""
        for number in self._seeds:
            self._server.complete(tokens(4800, number), output=4, program_id=f"crowd-{number}", is_last_step=1)
            if number % 4 == 3:
                return

    def ask(self, prompt: list[int], seed: int) -> tuple[float, list[int]]:
        """Send a turn. Return the share that was cached, and the prompt of the turn that follows."""
        answer = self._server.complete(prompt, output=100)
        return cached(answer) / len(prompt), continued(prompt, answer, 200, seed)

    def works(self) -> dict[str, list[float]]:
        """Play the agent and its forks. Return the cached shares of first turns of forks, of their second ones, and of
        the agent's own turns, the last of which comes after the forks."""
        own, history = [], tokens(3000, 1)
        for turn in range(TURNS):
            share, history = self.ask(history, 10 + turn)
            own.append(share)
            self.crowd()
        begun = [[*history, *tokens(100, 20 + number)] for number in range(FORKS)]
        with ThreadPoolExecutor(FORKS) as pool:
            first = [*pool.map(self.ask, begun, range(30, 30 + FORKS))]
        self.crowd()
        second = [self.ask(prompt, 40 + number)[0] for number, (_, prompt) in enumerate(first)]
        self.crowd()
        own.append(self.ask([*history, *tokens(400, 50)], 51)[0])
        return {"forks": [share for share, _ in first], "second turns": second, "own": own[1:]}


@pytest.fixture(params=POLICIES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    fast = EmulatedSettings(time_scale=20.0)
    with live(tmp_path_factory.mktemp("forks"), emulated=fast, **POLICIES[request.param], **POOL) as found:
        yield found


def test_forks_and_their_parent_find_the_conversation(server: Live, request: pytest.FixtureRequest) -> None:
    shares = Agent(server).works()
    policy = request.node.callspec.params["server"]
    if policy == STOCK:
        assert max(shares["own"]) < 0.05
        assert min(shares["forks"]) < 0.05
        return
    assert min(shares["forks"] + shares["second turns"] + shares["own"]) > 0.9
    until(server.is_idle)
    rows = [row for row in server.state()["program_list"] if not row["program_id"].startswith("crowd")]
    (parent,) = [row for row in rows if row["parent_id"] is None]
    assert parent["turns"] >= TURNS + 1
    assert {row["parent_id"] for row in rows if row is not parent} == {parent["program_id"]}
    assert len(rows) == 1 + FORKS
