"""Turn ids: one for each call, the same for every try of it, never the same for two calls of a program."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.run_dir import read_turns
from continuum_traces.wire import read_turn_id
from fake_server import FakeServer, Planned
from sdk import ask

from continuum_client import AsyncOpenAI, OpenAI, extra_body, headers
from continuum_client.dialects import DIALECTS, HEADERS
from continuum_client.program import Program
from continuum_client.settings import ClientSettings


def ids_of(server: FakeServer) -> list[str]:
    """Of all tries, in order of arrival."""
    found = [seen.headers["x-turn-id"] for seen in server.seen if seen.method == "POST"]
    assert all(read_turn_id(turn_id) == turn_id for turn_id in found)
    return found


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_every_try_of_a_call_has_its_id_and_the_record_too(
    serve: Callable[..., FakeServer], tmp_path: Path, dialect: str
) -> None:
    server = serve("openai" if dialect == "headers" else dialect)
    client = OpenAI(base_url=server.url, dialect=dialect, record=tmp_path)
    with client.program("p"):
        server.plan.extend([Planned(500), Planned(hang_up=True)])
        ask(client)
        ask(client)
    first, *tries, second = [turn for turn in server.seen if turn.path.endswith("/completions")]
    assert len(tries) == 2
    assert {turn.headers["x-turn-id"] for turn in tries} == {first.headers["x-turn-id"]}
    sent = [first.headers["x-turn-id"], second.headers["x-turn-id"]]
    assert len(set(sent)) == 2
    assert [record.turn_id for record in read_turns(tmp_path)] == sent
    if dialect == "vllm":
        assert [turn.body["vllm_xargs"]["turn_id"] for turn in (*tries, second)] == [sent[0], sent[0], sent[1]]


@pytest.mark.filterwarnings("ignore::continuum_client.ContinuumWarning")
def test_a_call_sent_again_without_a_refused_field_is_the_same_turn(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url, dialect="vllm")
    with client.program("p"):
        ask(client)
    assert [seen.status for seen in server.seen] == [400, 200]
    assert len(set(ids_of(server))) == 1


def test_a_failed_call_is_recorded_under_the_id_it_was_sent_with(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path, max_retries=0)
    with client.program("p"):
        server.plan.append(Planned(500))
        with pytest.raises(Exception, match="500"):
            ask(client)
        ask(client)
    assert [record.turn_id for record in read_turns(tmp_path)] == ids_of(server)


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
