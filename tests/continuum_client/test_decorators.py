"""The decorators make programs and tools of plain functions, coroutines, generators and asynchronous generators."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Iterator

import pytest
from fake_server import FakeServer
from sdk import ask

from continuum_client import AsyncOpenAI, OpenAI, ProgramClosed, current_program, tool


def test_each_call_of_a_decorated_function_is_a_program(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)

    @client.program
    def plain(times: int) -> str:
        """Ask."""
        for _ in range(times):
            ask(client)
        return "done"

    @client.program
    def steps(times: int) -> Iterator[int]:
        for number in range(times):
            ask(client)
            yield number

    assert (plain(2), plain(1), plain.__doc__) == ("done", "done", "Ask.")
    one, two = steps(2), steps(2)  # stepped in turn, each stays in its own program
    assert [*zip(one, two, strict=True)] == [(0, 0), (1, 1)]
    ids = server.ids
    assert ids[0] == ids[1] != ids[2]
    assert (ids[3], ids[4]) == (ids[5], ids[6])
    assert len(set(ids)) == 4
    assert current_program() is None


def test_a_decorator_with_a_name_and_options(vllm: FakeServer) -> None:
    client = OpenAI(base_url=vllm.url, dialect="vllm")

    @client.program("fix", metadata={"task": "triage"})
    def fix() -> None:
        ask(client)

    @client.program(metadata={"task": "review"})
    def review() -> None:
        fix()
        ask(client)

    fix()
    review()
    tags = vllm.xargs
    first, second, reviewed = (tag["program_id"] for tag in tags)
    assert first != second
    assert first.startswith("fix-")
    assert second.startswith("fix-")
    assert tags[1]["parent_id"] == reviewed
    assert len(vllm.released) == 3


def test_coroutines_and_asynchronous_generators(server: FakeServer) -> None:
    client = AsyncOpenAI(base_url=server.url)

    async def ask_async() -> None:
        await ask(client)

    @client.program
    async def plain() -> str:
        await ask_async()
        return "done"

    @client.program
    async def steps() -> AsyncIterator[int]:
        for number in range(2):
            await ask_async()
            yield number

    async def run() -> list[int]:
        assert await asyncio.gather(plain(), plain()) == ["done", "done"]
        return [number async for number in steps()]

    assert asyncio.run(run()) == [0, 1]
    assert inspect.iscoroutinefunction(plain)
    ids = server.ids
    assert len(set(ids)) == 3
    assert ids[2] == ids[3]


class Searches:
    """A tool that is an object."""

    def __call__(self, text: str) -> str:
        return text.upper()


def test_tools_of_every_kind_are_measured(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)

    @tool
    def grep() -> str:
        return "here"

    @tool
    async def fetch() -> str:
        return "page"

    @tool
    def lines() -> Iterator[str]:
        yield "one"
        return (yield "two")

    @tool
    async def pages() -> AsyncIterator[str]:
        yield "one"

    async def every() -> list[str]:
        return [await fetch(), *lines(), *[page async for page in pages()]]

    assert grep() == "here"  # outside any program
    with client.program("p") as p:

        @p.tool
        def pytest_() -> int:
            return 1

        assert (grep(), pytest_(), asyncio.run(every())) == ("here", 1, ["page", "one", "two", "one"])
        assert (p.tool(functools.partial(max, 1))(2), tool(Searches())("text")) == (2, "TEXT")
        assert [run.name for run in p.take().runs] == ["grep", "pytest_", "fetch", "lines", "pages", "max", "Searches"]
    with pytest.raises(ProgramClosed):
        pytest_()
