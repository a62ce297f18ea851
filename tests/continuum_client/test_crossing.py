"""30 programs run at once, on one event loop, in threads and in pools that they share. No request carries the tags of
another program."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_server import FakeServer, Seen
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sdk import ask

from continuum_client import AsyncOpenAI, OpenAI, instrument, uninstrument


def says(client: Any, program_id: str) -> Any:
    """A call whose text names the program it is meant to belong to."""
    return ask(client, messages=[{"role": "user", "content": program_id}])


def check(turns: list[Seen], expected: Counter[str]) -> None:
    meant: Counter[str] = Counter()
    for turn in turns:
        name = turn.body["messages"][0]["content"]
        meant[name] += 1
        sent = turn.program_id, turn.body["session_id"], turn.body["vllm_xargs"]["program_id"]
        assert sent == (name, name, name)
        tool = turn.body["vllm_xargs"].get("last_func_call")
        assert tool is None or tool == f"tool of {name}"
    assert meant == expected
    assert len({turn.headers["x-turn-id"] for turn in turns}) == len(turns)


KINDS = ["ask", "thread", "pool", "to_thread", "child", "task"]
steps = st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def property_server() -> Any:
    with FakeServer("vllm") as server:
        yield server


@settings(max_examples=8)
@given(plans=st.lists(steps, min_size=2, max_size=6))
@example(plans=[["ask", "child", "task"]] * 30)
def test_any_mixture(property_server: FakeServer, plans: list[list[str]]) -> None:
    """Programs side by side on one loop, each doing its own mixture of threads, pools, tasks, tools and sub-agents."""
    property_server.seen.clear()
    expected: Counter[str] = Counter()
    sync = OpenAI(base_url=property_server.url, dialect="vllm")

    async def in_thread(name: str) -> None:
        thread = threading.Thread(target=says, args=(sync, name))
        thread.start()
        await asyncio.to_thread(thread.join)

    async def one(client: AsyncOpenAI, pool: ThreadPoolExecutor, name: str, plan: list[str]) -> None:
        async with client.program(name) as p:
            kinds: dict[str, Callable[[], Any]] = {
                "ask": lambda: says(client, name),
                "task": lambda: asyncio.create_task(says(client, name)),
                "thread": lambda: in_thread(name),
                "pool": lambda: asyncio.wrap_future(pool.submit(says, sync, name)),
                "to_thread": lambda: asyncio.to_thread(says, sync, name),
            }
            for number, step in enumerate(plan):
                meant = f"{name}.{number}" if step == "child" else name
                expected[meant] += 1
                async with p.tool(f"tool of {name}"):
                    await asyncio.sleep(0)
                if step == "child":
                    async with p.child(meant):
                        await says(client, meant)
                else:
                    await kinds[step]()

    async def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            async with AsyncOpenAI(base_url=property_server.url, dialect="vllm", timeout=300) as client:
                await asyncio.gather(*(one(client, pool, f"p{n}", plan) for n, plan in enumerate(plans)))

    instrument(implicit=False)  # threads inherit the program
    try:
        asyncio.run(run())
    finally:
        uninstrument()
    check(property_server.turns, expected)
