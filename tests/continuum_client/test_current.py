"""Which program is current: generators keep their own, and a closed program is never current and never a parent."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_server import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from sdk import ask, ours_of

from continuum_client import AsyncOpenAI, OpenAI, Program, current_program
from continuum_client.errors import once


def name() -> str | None:
    program = current_program()
    return None if program is None else program.id


def label(program_id: str | None) -> str | None:
    """Without the digits that a decorator adds."""
    return None if program_id is None else program_id.rpartition("-")[0]


def labels(server: FakeServer) -> list[str | None]:
    return [label(program_id) for program_id in server.ids]


def job(client: OpenAI, program_id: str, turns: int = 2) -> Iterator[Program]:
    @client.program(program_id)
    def steps() -> Iterator[Program]:
        for _ in range(turns):
            ask(client)
            p = current_program()
            assert p is not None
            yield p

    return steps()


def test_bare_generators(client: OpenAI, vllm: FakeServer) -> None:
    """They have no context of their own, so the program of the one that began last is current in all. One warning says
    so; none if they are nested, or one after the other."""

    def bare(program_id: str) -> Iterator[None]:
        with client.program(program_id):
            ask(client)
            yield
            ask(client)
            yield

    def one_inside_the_other() -> None:
        for _ in bare("outer"):
            for _ in bare("inner"):
                pass

    def side_by_side() -> None:
        for first, second in (("a", "b"), ("c", "d")):
            list(zip(bare(first), bare(second), strict=True))

    assert ours_of(one_inside_the_other, "") == []
    assert vllm.ids == ["outer", "inner", "inner", "outer", "inner", "inner"]
    assert len(ours_of(side_by_side, "'a' is left while program 'b'.*decorate the generators")) == 1
    assert vllm.ids[6:10] == ["a", "b", "b", "b"]
    assert current_program() is None


def test_values_exceptions_and_the_result_pass_through(client: OpenAI) -> None:
    @client.program
    def echo() -> Generator[Any, Any, str]:
        got = yield "first"
        try:
            yield got
        except KeyError:
            yield "caught"
        return "result"

    running = echo()
    assert [next(running), running.send(7), running.throw(KeyError())] == ["first", 7, "caught"]
    with pytest.raises(StopIteration, match="result"):
        next(running)


def test_a_generator_that_is_dropped_in_a_thread_leaves_nothing_there(client: OpenAI, vllm: FakeServer) -> None:
    """Later calls in that thread, and in the event loops that it runs, are tagged as usual."""
    other = AsyncOpenAI(base_url=vllm.url, dialect="vllm")

    def work() -> None:
        next(job(client, "dropped"))
        gc.collect()
        assert current_program() is None
        asyncio.run(ask(other))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    first, second = vllm.ids
    assert second not in (None, first)


def test_asynchronous_context_managers_made_of_generators(vllm: FakeServer) -> None:
    @contextlib.asynccontextmanager
    async def session(client: AsyncOpenAI, program_id: str) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(client.program(program_id))
            yield

    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="vllm", implicit=False)
        async with session(client, "s"):
            await ask(client)
            async with session(client, "t"):
                await asyncio.create_task(ask(client))  # type: ignore[arg-type]
            assert name() == "s"
        assert current_program() is None

    asyncio.run(run())
    assert vllm.ids == ["s", "t"]


@pytest.fixture
def of_a_fixture(client: OpenAI) -> Iterator[str]:
    with client.program("fixture") as p:
        yield p.id


def test_fixtures(of_a_fixture: str) -> None:
    assert name() == of_a_fixture


def test_each_step_in_another_thread(client: OpenAI, vllm: FakeServer) -> None:
    """As Starlette steps the generator of a ``StreamingResponse``: in a pool, each time in a copy of the context."""
    one, two = job(client, "one"), job(client, "two")
    with ThreadPoolExecutor(2) as pool:
        for each in (one, two, one, two, one, two):
            context = contextvars.copy_context()
            pool.submit(context.run, next, each, None).result(60)
    assert labels(vllm) == ["one", "two", "one", "two"]


@pytest.mark.usefixtures("instrumented")
def test_threads_started_in_a_generator(client: OpenAI) -> None:
    seen: list[str | None] = []

    @client.program("p")
    def steps() -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            yield
            thread = threading.Thread(target=lambda: seen.append(label(name())))
            thread.start()
            thread.join(60)
            pool.submit(lambda: seen.append(label(name()))).result(60)

    for _ in steps():
        thread = threading.Thread(target=lambda: seen.append(name()))
        thread.start()
        thread.join(60)
    assert seen == [None, "p", "p"]


def test_async_generators(vllm: FakeServer) -> None:
    def stream(client: AsyncOpenAI, program_id: str) -> AsyncIterator[str | None]:
        @client.program(program_id)
        async def steps() -> AsyncIterator[str | None]:
            for _ in range(2):
                await asyncio.gather(*(ask(client) for _ in range(2)))
                yield name()

        return steps()

    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="vllm", implicit=False)
        one, two = stream(client, "one"), stream(client, "two")
        for each in (one, two, one, two):
            assert label(await anext(each)) in ("one", "two")
            assert current_program() is None
        for each in (one, two):
            assert await anext(each, None) is None

    asyncio.run(run())
    assert labels(vllm) == ["one", "one", "two", "two"] * 2
    assert len(vllm.released) == 2


@given(st.data())
def test_any_interleaving(data: st.DataObject) -> None:
    """Generators with nested programs, stepped in any order and dropped anywhere: each sees its own programs."""
    client = OpenAI(base_url="http://127.0.0.1:9/v1", implicit=False)

    def steps(of: str, depth: int) -> Iterator[None]:
        outer = current_program()

        @client.program(f"{of}{depth}")
        def inner() -> Iterator[None]:
            p = current_program()
            assert p is not None
            assert (label(p.id), p.parent_id) == (f"{of}{depth}", outer.id if outer else None)
            yield
            assert current_program() is p
            if depth < 2:
                yield from steps(of, depth + 1)
            assert current_program() is p
            yield
            assert current_program() is p

        return inner()

    running = {of: steps(of, 0) for of in "abc"}
    while running:
        of = data.draw(st.sampled_from(sorted(running)))
        if data.draw(st.integers(0, 9)) == 0 or next(running[of], "end") == "end":
            del running[of]
        assert current_program() is None
    assert once._given == set()  # nothing was to warn of


def test_a_thread_inside_a_block_is_warned_of_once(
    client: OpenAI, vllm: FakeServer, recwarn: pytest.WarningsRecorder
) -> None:
    """It does not inherit the program. Neither the block's own thread nor a bound function is warned of."""

    def in_threads(*functions: Any) -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            for function in functions:
                pool.submit(function, client).result()
        return [str(each.message) for each in recwarn if "entered in another thread" in str(each.message)]

    assert in_threads(ask) == []
    with client.program("task") as program:
        ask(client)
        assert in_threads(program.bind(ask)) == []
        (warning,) = in_threads(ask, ask)
    assert "while 'task' is entered" in warning
    assert len(in_threads(ask)) == 1
    assert vllm.ids[1:3] == ["task", "task"]
    assert "task" not in (vllm.ids[0], *vllm.ids[3:])
