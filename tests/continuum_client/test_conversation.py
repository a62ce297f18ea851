"""Six parallel roll-outs of one prompt keep their programs over four turns, in our clients and behind the proxy."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import fake_server
import openai
import pytest
from fake_server import FakeServer

import continuum_client
from continuum_client import OpenAI
from continuum_client.proxy import Proxy
from continuum_client.proxy_command import proxy_state

ROLLOUTS, TURNS = 6, 4
Ask = Callable[[list[Any]], Awaitable[Any]]
"""From messages to the message of the answer."""


@pytest.fixture(params=["texts", "tool calls"])
def vllm(request: Any, serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server whose answers all differ: in their texts, or only in the ids of their tool calls."""
    numbers = itertools.count()

    def answer(body: Any) -> tuple[Any, str]:
        number = next(numbers)
        if request.param == "texts":
            return {"role": "assistant", "content": f"answer {number}"}, "stop"
        call = {"id": f"call-{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"

    monkeypatch.setattr(fake_server, "_message", answer)
    return serve("vllm")


async def roll_out(ask: Ask, server: FakeServer) -> list[set[str | None]]:
    """Play the roll-outs in turn, in another order each time. Return the program ids of each."""
    rollouts: list[list[Any]] = [[{"role": "user", "content": "the same"}] for _ in range(ROLLOUTS)]
    found: list[set[str | None]] = [set() for _ in rollouts]
    order = list(range(ROLLOUTS))
    for _ in range(TURNS):
        random.Random(len(server.turns)).shuffle(order)
        for number in order:
            rollouts[number].append(await ask(rollouts[number]))
            rollouts[number].append({"role": "user", "content": "go on"})
            found[number].add(server.turns[-1].program_id)
    return found


@pytest.mark.parametrize(
    ("through", "stream"),
    [
        *(("our client", False), ("our client", True), ("our asynchronous client", False)),
        *(("an instrumented client", True), ("an instrumented asynchronous client", False)),
        *(("a proxy of one agent", True), ("a standing proxy", False)),
    ],
)
def test_each_roll_out_keeps_its_own_program(vllm: FakeServer, stream: bool, through: str) -> None:
    """``uninstrument()`` releases all programs of an instrumented client, also if their event loop is gone."""

    def asking(client: openai.OpenAI | openai.AsyncOpenAI) -> Ask:
        async def create(messages: list[Any]) -> Any:
            given: Any = {"model": "m", "messages": messages}
            if isinstance(client, openai.AsyncOpenAI):
                answer = await client.chat.completions.create(**given)
            else:
                answer = await asyncio.to_thread(streamed if stream else client.chat.completions.create, **given)
            return answer.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})

        def streamed(**given: Any) -> Any:
            with client.chat.completions.stream(**given) as events:  # type: ignore[union-attr]
                return events.get_final_completion()

        return create

    async def run() -> list[set[str | None]]:
        if "client" in through:
            module: Any = openai if "instrumented" in through else continuum_client
            cls = module.AsyncOpenAI if "asynchronous" in through else module.OpenAI
            return await roll_out(asking(cls(base_url=vllm.url)), vllm)
        listen = ("127.0.0.1", 0) if "standing" in through else None
        async with Proxy(vllm.url, proxy_state("vllm", None, "none"), listen=listen) as proxy:
            return await roll_out(asking(openai.OpenAI(base_url=f"{proxy.address}/v1")), vllm)

    if "instrumented" in through:
        continuum_client.instrument(dialect="vllm")
    found = asyncio.run(run())
    if "instrumented" in through:
        continuum_client.uninstrument()
        assert sorted(vllm.released) == sorted({str(name) for name in vllm.ids})
    assert [len(ids) for ids in found] == [1] * ROLLOUTS
    assert len(set.union(*found) - {None}) == ROLLOUTS


def test_equal_answers_in_threads(serve: Callable[..., FakeServer]) -> None:
    """Nothing but the thread tells them apart."""
    server = serve("vllm")
    client, together = OpenAI(base_url=server.url, dialect="vllm"), threading.Barrier(ROLLOUTS)

    def agent(number: int) -> None:
        messages: list[Any] = [{"role": "user", "content": "the same"}]
        for _ in range(TURNS):
            answer = client.chat.completions.create(model="m", messages=messages, user=f"agent {number}")
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "go on"})
            together.wait(60)

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(ROLLOUTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({(turn.body["user"], turn.program_id) for turn in server.turns}) == ROLLOUTS
    assert len(set(server.ids)) == ROLLOUTS
