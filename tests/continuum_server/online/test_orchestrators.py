"""What roll-out frameworks and routers use, on a real vLLM server with two API keys: tool events, gauges, and groups of
equal prompts without ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.records import read_events
from live_server import BLOCK, Live, cached, continued, live, tokens
from openai import OpenAI
from waiting import until

from continuum_client import OpenAI as ContinuumOpenAI

pytestmark = pytest.mark.slow

OURS, THEIRS = "our-key", "their-key"
POOL = 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A hold breaks even after minutes, because the pool is large."""
    config: dict[str, Any] = {"policy": "working-set", "kv_blocks": POOL, "max_model_len": 16_000}
    config |= {"emulated": EmulatedSettings(time_scale=20.0), "vllm_arguments": ("--api-key", OURS, THEIRS)}
    with live(tmp_path_factory.mktemp("events"), **config) as found:
        yield found


LONG = 400
"""Tokens of an answer. If turns are short beside the time between them, memory is worth much, and holds end early."""


def tell(server: Live, program: str, body: Any, key: str = OURS) -> httpx.Response:
    """Send an event; ``body`` is JSON, or the bytes themselves."""
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    url = f"{server.server.url}/continuum/programs/{program}/events"
    return httpx.post(url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0, **sent)


def client_of(server: Live, key: str = OURS) -> OpenAI:
    return OpenAI(base_url=f"{server.server.url}/v1", api_key=key, max_retries=0)


def begin(server: Live, program: str, seed: int, key: str = OURS) -> float:
    """Play two turns, because a newcomer's first is not held; return the seconds after which the hold will end."""
    sent = {"ignore_eos": True, "return_token_ids": True, "vllm_xargs": {"program_id": program}}
    prompt = tokens(3000, seed)
    for _ in range(2):
        answer = client_of(server, key).completions.create(
            model=server.model, prompt=prompt, max_tokens=LONG, extra_body=sent
        )
        prompt = continued(prompt, answer, 200, seed)
    return until(lambda: ends_in(server, program, key)) or 0.0


def ends_in(server: Live, program: str, key: str = OURS) -> float | None:
    (row,) = [row for row in server.state(key)["program_list"] if row["program_id"] == program]
    return row["expires_in_s"] if row["state"] == "held" else None


def test_a_hold_ends_early_or_lasts_longer(server: Live) -> None:
    without_s = begin(server, "p", 1)
    assert without_s > 40.0
    assert tell(server, "p", {"event": "started", "pred_tool_s": 5}).json() == {"program_id": "p", "held": True}
    shorter_s = ends_in(server, "p") or 0.0
    assert 0.0 < shorter_s < without_s - 10.0
    assert tell(server, "p", {"event": "finished"}).json()["held"]
    assert (ends_in(server, "p") or 0.0) > shorter_s
    assert tell(server, "p", {"event": "started", "pred_tool_s": 3600}).json() == {"program_id": "p", "held": False}
    assert ends_in(server, "p") is None
    ends = until(lambda: [event for event in read_events(server.record) if event.event == "unpin"]) or []
    assert [(event.program_id[-2:], event.reason) for event in ends] == [(":p", "expired")]


def test_our_client_s_tools_tell(server: Live) -> None:
    client = ContinuumOpenAI(base_url=f"{server.server.url}/v1", api_key=OURS, dialect="vllm", max_retries=0)
    with client.program("agent") as p:
        for length in (3000, 3200):
            client.completions.create(
                model=server.model, prompt=tokens(length, 6), max_tokens=LONG, extra_body={"ignore_eos": True}
            )
        until(lambda: ends_in(server, "agent"))
        with p.tool("pytest", expect_s=5, tell=True):
            expected_s = ends_in(server, "agent") or 0.0
        assert (ends_in(server, "agent") or 0.0) > expected_s > 0.0
        with p.tool("deploy", expect_s=3600, tell=True):
            assert ends_in(server, "agent") is None


def test_a_key_touches_no_program_of_another(server: Live) -> None:
    begin(server, "same-id", 2, THEIRS)
    gives_up = {"event": "started", "pred_tool_s": 3600}
    assert tell(server, "same-id", gives_up).status_code == 404
    begin(server, "same-id", 3)
    assert tell(server, "same-id", gives_up).json()["held"] is False
    assert (ends_in(server, "same-id", THEIRS) or 0.0) > 0.0
    assert tell(server, "same-id", gives_up, "wrong-key").status_code == 401


HUGE = b'{"event": "started", "pred_tool_s": 1, "x": "' + b"x" * 30_000_000 + b'"}'
REFUSED = [
    *((seconds, 400, "pred_tool_s") for seconds in (-1, 1e12, [5], "5", True, {"s": 1}, None, 86_400.1)),
    (b'{"event": "started", "pred_tool_s": NaN}', 400, "malformed"),
    (b'{"event": "started", "pred_tool_s": 1e999}', 400, "out of range"),
    ({"event": "started"}, 400, "pred_tool_s"),
    ({"event": "finished", "pred_tool_s": 1}, 400, "pred_tool_s"),
    ({"event": "started", "pred_tool_s": 1, "pred_tool_p90_s": -1}, 400, "pred_tool_p90_s"),
    ({"event": "ended"}, 400, "event"),
    ({"event": ["started"]}, 400, "event"),
    ({"pred_tool_s": 1}, 400, "event"),
    ({"event": "finished", "tool": "pytest"}, 400, "tool"),
    ([], 400, "object"),
    (b"", 400, "event"),
    (b"[" * 4000, 400, "object"),
    (HUGE, 413, "4096 bytes"),
]


def test_wrong_values_are_refused_by_name_and_change_nothing(server: Live) -> None:
    before_s = begin(server, "hostile", 4)
    for body, status, word in REFUSED:
        sent = body if isinstance(body, bytes | dict) or body == [] else {"event": "started", "pred_tool_s": body}
        answer = tell(server, "hostile", sent)
        assert (answer.status_code, word in answer.json()["error"]) == (status, True), (sent, answer.text)
    for unknown in ("nobody", "x" * 257):
        assert tell(server, unknown, {"event": "finished"}).status_code == (404 if unknown == "nobody" else 400)
    assert before_s / 2 < (ends_in(server, "hostile") or 0.0) < before_s
    assert server.state(OURS)["plugin_errors"] == 0


def test_gauges_say_what_a_router_wants_to_know(server: Live) -> None:
    """The contexts of the programs above."""
    begin(server, "gauge", 5)
    page = until(lambda: found if (found := read_metrics(server)).get("pinned_blocks") else None) or {}
    assert page["pool_blocks"] == POOL
    assert page["pinned_blocks"] >= 3008 // BLOCK
    assert page["evictable_blocks"] == POOL - 1 - page["pinned_blocks"]  # vLLM keeps the null block
    assert BLOCK * POOL / (3200 + 2 * LONG) < page["programs_fitting"] < 1.1 * BLOCK * POOL / 3008


def read_metrics(server: Live) -> dict[str, float]:
    text = httpx.get(f"{server.server.url}/metrics", timeout=30.0).text
    return {name: float(value) for name, value in re.findall(r'^continuum:(\w+){engine="0"} (\S+)$', text, re.M)}


def test_episodes_that_begin_with_one_prompt_and_have_no_id_are_programs_of_their_own(server: Live) -> None:
    """As verl and NeMo Gym send them. All but the first find the prompt of the first, which is in memory once."""
    client, prompt = client_of(server), tokens(6000, 7)
    before = server.state(OURS)["recognised_by"].get("prompt", 0)

    def episode(number: int) -> list[int]:
        history, hits = prompt, []
        for turn in range(3):
            sent: dict[str, Any] = {"ignore_eos": True, "return_token_ids": True}
            answer = client.completions.create(
                model=server.model, prompt=history, max_tokens=60, temperature=1.0, seed=number, extra_body=sent
            )
            hits.append(len(history) - cached(answer))
            history = continued(history, answer, 200, 100 * number + turn)
        return hits

    with ThreadPoolExecutor(8) as threads:
        misses = list(threads.map(episode, range(8)))
    assert max(max(later) for _, *later in misses) < 200 + 60 + BLOCK
    own = [row for row in server.state(OURS)["program_list"] if row["recognised_by"] == "prompt"]
    assert [row["turns"] for row in own] == [3] * 8
    assert server.state(OURS)["recognised_by"]["prompt"] == before + 8
