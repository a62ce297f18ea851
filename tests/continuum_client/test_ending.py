"""How programs end that nobody closes: by garbage collection, with their process, with their client."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.appender import SharedLines
from continuum_traces.records import read_turns
from fake_server import FakeServer
from sdk import ask, entered, turns_of, value

from continuum_client import AsyncOpenAI, OpenAI, current_program

# ---------------------------------------------------------------------------------- garbage collection


def drop(thing: Any) -> None:
    """Leave the thing to the garbage collection."""
    cell = [thing]
    cell.append(cell)


def a_client(client: OpenAI, other: AsyncOpenAI) -> None:
    ask(client)


def a_stream(client: OpenAI, other: AsyncOpenAI) -> None:
    with client.program("dropped"):
        ask(client)
        stream = ask(client, stream=True)
        next(stream)
        drop(stream)


def a_generator(client: OpenAI, other: AsyncOpenAI) -> None:
    @client.program("dropped")
    def agent() -> Iterator[None]:
        ask(client)
        with current_program().tool("pytest"):  # type: ignore[union-attr]
            yield

    running = agent()
    next(running)
    drop(running)


def a_coroutine(client: OpenAI, other: AsyncOpenAI) -> None:
    reached = asyncio.Event()

    async def agent() -> None:
        async with other.program("dropped"):
            await ask(other)
            reached.set()
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    task = loop.create_task(agent())
    loop.run_until_complete(reached.wait())
    loop.close()
    drop(task)


@pytest.mark.parametrize("what", [a_client, a_stream, a_generator, a_coroutine])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_garbage_collection_neither_waits_nor_writes(
    vllm: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[..., None]
) -> None:
    """It happens here while its thread holds the locks of the record's files, as any allocation may cause it."""
    collecting, collected_in, inside, plain = threading.Event(), [], [], SharedLines.write

    def write(self: SharedLines, lines: bytes) -> None:
        inside.append(collecting.is_set())  # an error here would be a warning of the recorder's
        if threading.current_thread() is thread:
            collecting.set()
            collected_in.append(gc.collect())
            collecting.clear()
        plain(self, lines)

    def run() -> None:
        client = OpenAI(base_url=vllm.url, dialect="vllm", record=tmp_path)
        with client.program("next"):
            ask(client)

    thread = threading.Thread(target=run, daemon=True)
    gc.collect()
    gc.disable()
    try:
        made: dict[str, Any] = {"base_url": vllm.url, "dialect": "vllm", "record": tmp_path}
        what(OpenAI(**made), AsyncOpenAI(**made))
        monkeypatch.setattr(SharedLines, "write", write)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert (max(collected_in) > 0, any(inside)) == (True, False)
    dropped = vllm.ids[0]
    assert turns_of(tmp_path) == {dropped: 1, "next": 1}
    if what is a_stream:
        assert [turn.error for turn in read_turns(tmp_path)] == [None, None, "closed before its end"]
    if what in (a_generator, a_coroutine):
        assert vllm.released == [dropped, "next"]


# -------------------------------------------------------------------------------------- the process ends

AGENTS = """
import asyncio, multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import openai
from continuum_client import AsyncOpenAI, OpenAI, instrument
url, path, how = sys.argv[1:4]
ask = dict(model="m", messages=[{"role": "user", "content": "hi"}])
options = dict(base_url=url, api_key="k", dialect="vllm", record=path)

kept = []  # a worker of a pool runs several agents

def agent(number=0):
    client, plain = OpenAI(**options), openai.OpenAI(base_url=url, api_key="k")
    program = client.program(f"open-{number}").__enter__()
    kept.extend((client, plain, program))
    client.chat.completions.create(**ask)
    kept.append(client.chat.completions.create(**ask, stream=True))  # never read
    program._leave()
    client.chat.completions.create(**ask)  # a conversation
    plain.chat.completions.create(**ask)

async def asynchronous():
    client = AsyncOpenAI(**options)
    kept.extend((client, client.program("open-0").__enter__()))
    await client.chat.completions.create(**ask)

def parent():
    client = OpenAI(**options)
    with client.program("parent"):
        client.chat.completions.create(**ask)
        child = multiprocessing.get_context("fork").Process(target=client.chat.completions.create, kwargs=ask)
        child.start()
        child.join()
        client.chat.completions.create(**ask)

instrument(dialect="vllm", record=path)  # in spawned workers too
if __name__ == "__main__":
    if how == "async":
        asyncio.run(asynchronous())
    elif how == "parent":
        parent()
    elif how == "alone":
        agent()
    elif how == "pool":
        with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
            list(pool.map(agent, range(3)))
    elif how == "os.fork" and os.fork():
        os.wait()
    else:
        context = multiprocessing.get_context(None if how == "os.fork" else how)
        workers = [context.Process(target=agent, args=(number,)) for number in range(2)]
        [worker.start() for worker in workers]
        [worker.join() for worker in workers]
"""


def ended(server: FakeServer, folder: Path, how: str) -> None:
    (folder / "agents.py").write_text(AGENTS)
    command = [sys.executable, "-W", "ignore", "agents.py", server.url, str(folder / "run"), how]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("how", "agents"),
    [("alone", 1), ("pool", 3)]
    + [pytest.param(how, 2, marks=pytest.mark.slow) for how in ("fork", "os.fork", "spawn", "forkserver")],
)
def test_programs_that_are_open_when_their_process_ends(
    vllm: FakeServer, tmp_path: Path, how: str, agents: int
) -> None:
    """Each is released once and its record is complete: named programs, conversations, plain openai clients."""
    ended(vllm, tmp_path, how)
    assert len(set(vllm.ids)) == 3 * agents
    assert sorted(vllm.released) == sorted({str(name) for name in vllm.ids})
    assert [*turns_of(tmp_path / "run").values()] == [1] * 3 * agents
    assert (tmp_path / "run" / "trace.jsonl").read_text().count('"kind":"end"') == 3 * agents


@pytest.mark.parametrize(
    ("how", "program", "turns"), [("async", "open-0", {"open-0": 1}), ("parent", "parent", {"parent": 2, "parent~": 1})]
)
def test_a_program_that_only_its_own_process_ends(
    vllm: FakeServer, tmp_path: Path, how: str, program: str, turns: dict[str, int]
) -> None:
    """An asynchronous client's that is left open. A parent's: in the record, what its worker adds is another's."""
    ended(vllm, tmp_path, how)
    assert vllm.released == [program]
    assert vllm.seen[-1].path.endswith("/release")
    assert len({tags["turn_id"] for tags in vllm.xargs}) == len(vllm.turns)  # both processes go on from one number
    assert {re.sub(r"~\d+", "~", name): count for name, count in turns_of(tmp_path / "run").items()} == turns


# --------------------------------------------------------------------------------------- the client closes


@pytest.mark.parametrize("cls", [OpenAI, AsyncOpenAI])
def test_a_client_that_closes_before_its_program(vllm: FakeServer, tmp_path: Path, cls: Any) -> None:
    """Conversations outside any program end with it too."""
    made: dict[str, Any] = {"base_url": vllm.url, "dialect": "vllm"}

    async def run() -> None:
        async with entered(cls(**made)) as client, entered(client.program("p")):
            await value(ask(client))
            await value(client.close())
        async with entered(cls(**made, record=tmp_path)) as client:
            await value(ask(client))

    asyncio.run(run())
    assert vllm.released == vllm.ids
    assert vllm.ids[0] == "p"
    assert [*turns_of(tmp_path).values()] == [1]
