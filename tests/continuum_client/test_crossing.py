"""No tag ever crosses from one program to another: 1,000 programs on one loop, 64 threads, pools shared by all."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from fake_server import FakeServer, Seen
from hypothesis import given, settings
from hypothesis import strategies as st

from continuum_client import AsyncOpenAI, OpenAI


def says(program_id: str | None) -> Any:
    """A request whose text names the program it is meant to belong to."""
    return {"model": "m", "messages": [{"role": "user", "content": str(program_id)}]}


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


@pytest.mark.slow
def test_a_thousand_programs_on_one_loop() -> None:
    """Over a transport in this process: a thousand connections of a real pool would be most of the time."""
    chance = random.Random(5)
    turns: list[Seen] = []
    http = importlib.import_module(openai.DefaultAsyncHttpxClient.__mro__[2].__module__.partition(".")[0])

    class Transport(http.AsyncBaseTransport):  # type: ignore[name-defined, misc]
        async def handle_async_request(self, request: Any) -> Any:
            await asyncio.sleep(chance.random() / 50)
            if request.url.path.endswith("/chat/completions"):
                body = json.loads(request.content)
                turns.append(Seen("POST", request.url.path, dict(request.headers), body))
                choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
                return http.Response(200, json={"id": "c", "object": "chat.completion", "choices": [choice]})
            return http.Response(200, json={})

    async def one(client: AsyncOpenAI, number: int) -> None:
        name = f"program {number}"
        async with client.program(name) as p:
            await asyncio.sleep(chance.random() / 10)
            await client.chat.completions.create(**says(name))
            async with p.tool(f"tool of {name}"):
                await asyncio.sleep(chance.random() / 50)
            if number % 4 == 0:
                async with p.child(f"child of {number}") as child:
                    await client.chat.completions.create(**says(child.id))
            await asyncio.create_task(client.chat.completions.create(**says(name)))

    async def run() -> None:
        http_client = openai.DefaultAsyncHttpxClient(transport=Transport())
        async with AsyncOpenAI(dialect="vllm", max_retries=0, http_client=http_client) as client:
            await asyncio.gather(*(one(client, number) for number in range(1000)))

    asyncio.run(run())
    expected = Counter({f"program {number}": 2 for number in range(1000)})
    expected.update(f"child of {number}" for number in range(0, 1000, 4))
    check(turns, expected)


def test_sixty_four_threads(serve: Callable[..., FakeServer]) -> None:
    """Each opens programs; all share one client, one pool of workers, and start threads of their own."""
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", max_retries=0, timeout=300)
    errors: list[BaseException] = []
    start = threading.Barrier(64)

    def ask(name: str) -> None:
        client.chat.completions.create(**says(name))

    def one(number: int, pool: ThreadPoolExecutor) -> None:
        try:
            start.wait(300)
            for turn in range(2):
                name = f"program {number}.{turn}"
                with client.program(name) as p:
                    shared = pool.submit(ask, name)
                    own = threading.Thread(target=ask, args=(name,))
                    own.start()
                    with p.tool(f"tool of {name}"):
                        own.join()
                    ask(name)
                    shared.result(300)
        except BaseException as error:
            errors.append(error)
            raise

    with ThreadPoolExecutor(8) as pool:
        threads = [threading.Thread(target=one, args=(number, pool)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    check(server.turns, Counter({f"program {number}.{turn}": 3 for number in range(64) for turn in range(2)}))


steps = st.lists(st.sampled_from(["ask", "thread", "pool", "to_thread", "child", "task"]), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def property_server() -> Any:
    with FakeServer("vllm") as server:
        yield server


@settings(max_examples=12)
@given(plans=st.lists(steps, min_size=2, max_size=6))
def test_any_mixture(property_server: FakeServer, plans: list[list[str]]) -> None:
    """Programs side by side on one loop, each doing its own mixture of threads, pools, tasks and sub-agents."""
    property_server.seen.clear()
    expected: Counter[str] = Counter()
    sync = OpenAI(base_url=property_server.url, dialect="vllm")

    def ask(name: str) -> None:
        sync.chat.completions.create(**says(name))

    async def in_thread(name: str) -> None:
        thread = threading.Thread(target=ask, args=(name,))
        thread.start()
        await asyncio.to_thread(thread.join)

    async def one(client: AsyncOpenAI, pool: ThreadPoolExecutor, name: str, plan: list[str]) -> None:
        async with client.program(name) as p:
            kinds: dict[str, Callable[[], Any]] = {
                "ask": lambda: client.chat.completions.create(**says(name)),
                "task": lambda: asyncio.create_task(client.chat.completions.create(**says(name))),
                "thread": lambda: in_thread(name),
                "pool": lambda: asyncio.wrap_future(pool.submit(ask, name)),
                "to_thread": lambda: asyncio.to_thread(ask, name),
            }
            for number, step in enumerate(plan):
                meant = f"{name}.{number}" if step == "child" else name
                expected[meant] += 1
                if step == "child":
                    async with p.child(meant):
                        await client.chat.completions.create(**says(meant))
                else:
                    await kinds[step]()

    async def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            async with AsyncOpenAI(base_url=property_server.url, dialect="vllm") as client:
                await asyncio.gather(*(one(client, pool, f"p{n}", plan) for n, plan in enumerate(plans)))

    asyncio.run(run())
    check(property_server.turns, expected)
