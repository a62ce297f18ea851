"""What a client cannot do: fail a request by its tags, or make the server grow.

A request's status is that of the same request without tags, whatever form these have.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.policy.program_table import Guards
from live_server import Live, live
from request_fuzz import AUTHORIZATIONS, KEYS, ROUTES, Pair, Sent, pairs
from waiting import until

pytestmark = pytest.mark.slow

AT_ONCE = 48
REQUESTS = 5_000
WARM_UP = 1_500
GROWTH_MB = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    config = {
        "policy": "static-ttl",
        "policy_options": {"ttl_s": 60.0},
        "guards": Guards(max_programs=200),
        "kv_blocks": 2000,
        "max_model_len": 512,
        "emulated": EmulatedSettings(time_scale=1000.0),
        "vllm_arguments": ("--enable-scale-out", "--disable-uvicorn-access-log", "--api-key", *KEYS),
    }
    with live(tmp_path_factory.mktemp("fuzz"), **config) as found:
        yield found


UNREAD = (
    '{"vllm_xargs": {"continuum_client": "0123456789abcdef"}',
    "{'vllm_xargs': {}}",
    '{"vllm_xargs": {},}',
    "[]",
    "",
)


def test_vllm_itself_refuses_what_is_passed_on_unread(server: Live) -> None:
    bodies = [text.encode(encoding) for text in UNREAD for encoding in ("utf-8", "utf-16")] + [b'{"a": "\xff"}']
    heads = (("Content-Type", "application/json"), ("Authorization", AUTHORIZATIONS[0]))
    requests = [Sent(path, heads, body) for path in ROUTES for body in bodies]
    statuses = differences([Pair(request, request) for request in requests], server.server.url)[1]
    assert statuses.keys() <= {400, 422}


def test_no_tag_fails_a_request_or_grows_the_server(server: Live) -> None:
    unequal, _ = differences(pairs(2, WARM_UP), server.server.url)
    before = resident_mb(server.server.process.pid)
    more, statuses = differences(pairs(3, REQUESTS), server.server.url)
    after = resident_mb(server.server.process.pid)
    assert unequal + more == []
    assert statuses[200] > REQUESTS / 2
    assert {400, 401} <= statuses.keys()
    assert before.keys() == after.keys()  # the same processes: none has died
    assert {name: after[name] - before[name] for name in after if after[name] - before[name] >= GROWTH_MB} == {}
    assert httpx.get(f"{server.server.url}/health").status_code == 200
    assert server.state(KEYS[0])["tags_rejected"] > REQUESTS / 10


def test_a_stopped_engine_hangs_nothing(server: Live) -> None:
    [engine] = [int(name.split()[-1]) for name in resident_mb(server.server.process.pid) if "EngineCor" in name]
    headers = {"Authorization": f"Bearer {KEYS[0]}"}

    def get(path: str) -> httpx.Response:
        return httpx.get(server.server.url + path, headers=headers, timeout=60.0)

    os.kill(engine, signal.SIGSTOP)
    try:
        page, state = get("/metrics").text, get("/continuum/state")
    finally:
        os.kill(engine, signal.SIGCONT)
    shown = [word in page for word in ("vllm:num_requests_running", "continuum:up 0", "continuum:pins")]
    assert shown == [True, True, False]
    assert (state.status_code, state.json()) == (503, {"error": "the engine did not answer within 5 s"})
    until(lambda: "continuum:up 1" in get("/metrics").text)


def differences(wanted: list[Pair], url: str) -> tuple[list[Any], Counter[int]]:
    """Requests whose status is not that of their plain twins, with both; how often each status came."""
    requests = list(dict.fromkeys([sent for pair in wanted for sent in (pair.plain, pair.tagged)]))
    statuses = dict(zip(requests, asyncio.run(_all(requests, url)), strict=True))
    unequal = [
        (f"{pair.tagged.path} {pair.tagged.headers} {pair.tagged.body!r:.1000}", statuses[pair.tagged])
        for pair in wanted
        if statuses[pair.tagged] != statuses[pair.plain]
    ]
    return unequal, Counter(statuses[pair.tagged] for pair in wanted)


async def _all(requests: list[Sent], url: str) -> list[int]:
    left, statuses = iter(enumerate(requests)), [0] * len(requests)
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:

        async def work() -> None:
            for number, request in left:
                headers = [(name.encode(), value.encode()) for name, value in request.headers]
                for _ in range(5):  # a refusal may close the connection while a long body is still on its way
                    with suppress(httpx.TransportError):
                        answer = await client.post(request.path, content=request.body, headers=headers)
                        statuses[number] = answer.status_code
                        break

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return statuses


def resident_mb(pid: int) -> dict[str, float]:
    """Memory of a process and of all its descendants, by name and process id."""
    owner = psutil.Process(pid)
    family = [owner, *owner.children(recursive=True)]
    return {f"{each.name()} {each.pid}": each.memory_info().rss / 1e6 for each in family}
