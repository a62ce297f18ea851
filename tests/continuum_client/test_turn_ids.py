"""Turn ids: one for each call, the same for every try of it. test_crossing: never the same for two calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from continuum_traces.programs.jsonl import read_programs
from continuum_traces.records import read_turns
from continuum_traces.wire import read_turn_id
from fake_server import FakeServer, Planned
from sdk import ask

from continuum_client import OpenAI, instrument, uninstrument
from continuum_client.dialects import DIALECTS


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


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter"])
def test_an_agent_s_second_try_of_an_answer_that_was_cut_is_the_same_turn(
    server: FakeServer, tmp_path: Path, reason: str
) -> None:
    """The server answered status 200. Another prompt, or the same one after a good answer, is another turn."""

    async def answer(_request: Any, number: int) -> Any:
        whole = server.answer("/chat/completions", {"messages": [{"role": "user"}]})
        if number == 1:
            whole["choices"][0]["finish_reason"] = reason
        return web.json_response(whole)

    server.handler = answer
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        for content in ("one", "one", "two", "two"):
            ask(client, messages=[{"role": "user", "content": content}])
    cut, again, second, third = ids_of(server)
    assert cut == again
    assert len({again, second, third}) == 3
    assert [turn.error is None for turn in read_turns(tmp_path)] == [False, True, True, True]
    (program,) = read_programs(tmp_path / "trace.jsonl")
    assert len(program.turns) == 3


def test_several_choices_are_said_to_count_together(
    server: FakeServer, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    async def answer(_request: Any, number: int) -> Any:
        whole = server.answer("/chat/completions", {"messages": [{"role": "user"}]})
        whole["choices"] = [{**whole["choices"][0], "index": index} for index in range(3)]
        return web.json_response({**whole, "usage": {"prompt_tokens": 9, "completion_tokens": 31, "total_tokens": 40}})

    server.handler = answer
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        for _ in range(2):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], n=3)
    assert ["their mean length" in str(each.message) for each in recwarn].count(True) == 1
    (program,) = read_programs(tmp_path / "trace.jsonl")
    assert [turn.output_tokens for turn in program.turns] == [11, 11]
