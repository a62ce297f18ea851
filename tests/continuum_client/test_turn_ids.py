"""Turn ids: one for each call, the same for every try of it, never the same for two calls of a program."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from continuum_traces.run_dir import read_turns
from continuum_traces.wire import read_turn_id
from fake_server import FakeServer, Planned
from sdk import ask

from continuum_client import AsyncOpenAI, OpenAI, extra_body, headers, instrument, uninstrument
from continuum_client.dialects import DIALECTS, HEADERS
from continuum_client.program import Program
from continuum_client.settings import ClientSettings


def ids_of(server: FakeServer) -> list[str]:
    """Of all tries, in order of arrival."""
    found = [seen.headers["x-turn-id"] for seen in server.asked]
    assert all(read_turn_id(turn_id) == turn_id for turn_id in found)
    return found


@pytest.mark.parametrize("instrumented", [False, True])
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.filterwarnings("ignore::continuum_client.ContinuumWarning")
def test_every_try_of_a_call_has_its_id_and_the_record_too(
    server: FakeServer, tmp_path: Path, dialect: Any, instrumented: bool, request: pytest.FixtureRequest
) -> None:
    """Of a call that fails in the end, too, and of one that is sent again without a refused field."""
    options: Any = {"dialect": dialect, "record": tmp_path}
    client = (openai.OpenAI if instrumented else OpenAI)(base_url=server.url, **({} if instrumented else options))
    if instrumented:
        request.addfinalizer(uninstrument)
    with (instrument(**options) if instrumented else client).program("p"):  # type: ignore[union-attr]
        server.plan.extend([Planned(500), Planned(hang_up=True)])
        ask(client)
        server.plan.append(Planned(401))
        with pytest.raises(openai.AuthenticationError):
            ask(client)
        ask(client)
    ids = ids_of(server)
    last = 3 + (dialect not in ("headers", "openai", "dynamo"))  # its fields are refused
    assert [ids.count(turn_id) for turn_id in dict.fromkeys(ids)] == [last, 1, 1], [seen.status for seen in server.seen]
    assert [record.turn_id for record in read_turns(tmp_path)] == list(dict.fromkeys(ids))
    assert all(
        seen.body.get("vllm_xargs", {"turn_id": id_})["turn_id"] == id_
        for seen, id_ in zip(server.asked, ids, strict=True)
    )


def test_no_two_calls_have_one_id(server: FakeServer, tmp_path: Path) -> None:
    """Side by side, in tasks, of sub-programs, of a program that is opened again, of conversations outside any."""
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p") as p, ThreadPoolExecutor(8) as pool:
        list(pool.map(p.bind(lambda _: ask(client)), range(40)))
    assert {record.turn_id for record in read_turns(tmp_path)} == set(ids_of(server))
    with client.program("p") as p:
        ask(client)
        with p.child("p.1"):
            ask(client)
    for said in ("hi", "ho"):
        ask(client, messages=[{"role": "user", "content": said}])

    async def main() -> None:
        async with AsyncOpenAI(base_url=server.url) as other, other.program("q"):
            await asyncio.gather(*(ask(other) for _ in range(10)))

    asyncio.run(main())
    assert len(set(ids_of(server))) == 54


def _next_id(program: Program, out: Any) -> None:
    out.put(program.take().tags.turn_id)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_processes_that_go_on_with_one_program() -> None:
    program = ClientSettings(HEADERS, None).program("p")
    seen = [program.take().tags.turn_id]
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    children = [context.Process(target=_next_id, args=(program, out)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    seen += [out.get() for _ in children] + [program.take().tags.turn_id]
    assert len(set(seen)) == 5


def test_fixed_tags_for_frameworks_name_no_turn() -> None:
    """They may be sent with many calls; the server's own rule then tells tries from turns."""
    with ClientSettings(HEADERS, None).program("p"):
        assert "turn_id" not in extra_body(dialect="vllm")["vllm_xargs"]
        assert not [name for name in headers() if "turn" in name.lower()]
