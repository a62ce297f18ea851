"""The decorators make programs and tools of plain functions, coroutines, generators and asynchronous generators."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
from fake_server import FakeServer
from sdk import ask

from continuum_client import AsyncOpenAI, OpenAI, ProgramClosed, current_program, tool


def test_each_call_of_a_decorated_function_is_a_program(server: FakeServer) -> None:
    client, other = OpenAI(base_url=server.url), AsyncOpenAI(base_url=server.url)

    @client.program
    def plain(times: int) -> str:
        """Ask."""
        for _ in range(times):
            ask(client)
        return "done"

    @other.program
    async def coroutine() -> str:
        await ask(other)
        await asyncio.create_task(ask(other))
        return "done"

    async def run() -> None:
        assert await asyncio.gather(coroutine(), coroutine()) == ["done", "done"]

    assert (plain(2), plain(1), plain.__doc__) == ("done", "done", "Ask.")
    asyncio.run(run())
    assert inspect.iscoroutinefunction(coroutine)
    assert sorted(Counter(server.ids).values()) == [1, 2, 2, 2]
    assert (server.ids[0] == server.ids[1], current_program()) == (True, None)


def test_a_decorator_with_a_name_and_options(client: OpenAI, vllm: FakeServer) -> None:

    @client.program("fix", output_tokens=9)
    def fix() -> None:
        ask(client)

    @client.program(output_tokens=9)
    def review() -> None:
        fix()
        ask(client)

    fix()
    review()
    first, second, reviewed = (tag["program_id"] for tag in vllm.xargs)
    assert first != second
    assert [name.rpartition("-")[0] for name in (first, second)] == ["fix", "fix"]
    assert [tag.get("parent_id") for tag in vllm.xargs] == [None, reviewed, None]
    assert len(vllm.released) == 3


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
        assert [run.name for run in p._state.take().runs] == [
            "grep",
            "pytest_",
            "fetch",
            "lines",
            "pages",
            "max",
            "Searches",
        ]
    with pytest.raises(ProgramClosed):
        pytest_()
