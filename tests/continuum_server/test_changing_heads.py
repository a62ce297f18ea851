"""What people complain of most, on our server: a line at a prompt's head that changes each turn, and what helps."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from live_server import Live, live

from continuum_client.changing_lines import KNOWN, ChangingLines
from continuum_client.proxy import Proxy
from continuum_client.proxy_command import proxy_state

pytestmark = pytest.mark.slow

TURNS = 6
RULES = "\n".join(f"Rule {number}: read what is there before you write." for number in range(300))
LINES = {
    "budget": "<total_tokens>{turn}12345 tokens left</total_tokens>",
    "clock": "Current time: 12:0{turn}:07",
}
"""Lines as agents send them, in front of the system prompt."""


async def hit_shares(server: Live, line: str, changing: ChangingLines | None) -> list[float]:
    """Play a conversation through the proxy. Return the share of each later prompt that was cached."""
    shares, history = [], list[dict[str, Any]]()
    async with (
        Proxy(f"{server.server.url}/v1", proxy_state("vllm", None, "none"), changing=changing) as proxy,
        httpx.AsyncClient(base_url=proxy.address, timeout=60.0) as client,
    ):
        for turn in range(TURNS):
            history.append({"role": "user", "content": f"Step {turn}. " + "Look at the next file. " * 30})
            body = {"model": server.model, "max_tokens": 32, "ignore_eos": True}
            head = {"role": "system", "content": f"{line.format(turn=turn)}\n{RULES}"}
            answer = await client.post("/v1/chat/completions", json={**body, "messages": [head, *history]})
            answer.raise_for_status()
            said, usage = answer.json()["choices"][0]["message"], answer.json()["usage"]
            history.append({"role": "assistant", "content": said["content"]})
            shares.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
    return shares[1:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with live(tmp_path_factory.mktemp("server"), policy="working-set") as found:
        yield found


@pytest.mark.parametrize("kind", LINES)
def test_a_line_that_changes_costs_the_history_unless_it_moves(server: Live, kind: str) -> None:
    before = asyncio.run(hit_shares(server, LINES[kind], None))
    after = asyncio.run(hit_shares(server, LINES[kind], ChangingLines(KNOWN)))
    assert max(before) < 0.05
    assert min(after) > 0.9


def test_vllm_itself_drops_claude_code_s_billing_header(server: Live) -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.{turn}; cch=0a{turn}1f;"
    assert min(asyncio.run(hit_shares(server, header, None))) > 0.9
