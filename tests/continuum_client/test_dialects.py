"""The same agent in every dialect, against servers that refuse whatever is not in their schema."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import openai
import pytest
from continuum_traces.records import read_turns
from fake_server import ASK, FakeServer, Planned, refusal
from sdk import agent, ask, items, ours_of, ran, trace_of

from continuum_client import AsyncOpenAI, ContinuumWarning, OpenAI, UnknownDialect, extra_body, headers
from continuum_client.dialects import AUTO, DIALECTS
from continuum_client.endpoints import endpoints
from continuum_client.sending import ClientSender

SCHEMAS = ["openai", "vllm", "trtllm", "thunderagent"]
SPOKEN = {
    **{dialect: [dialect] for dialect in SCHEMAS},
    "headers": SCHEMAS,
    "sglang": ["sglang", "vllm"],
    "dynamo": ["dynamo"],
    "openai": ["openai", "vllm", "thunderagent"],
    "auto": ["openai", "vllm", "sglang", "dynamo", "trtllm"],
}
"""The schemas that accept a dialect. ``sglang`` and ``dynamo`` refuse nothing here; test_endpoints has real ones."""
FIELDS: dict[str, Any] = {
    "vllm": {"session_id": "task-7", "prompt_cache_key": "task-7"},
    "sglang": {"session_id": "task-7"},
    "dynamo": {"nvext": {"agent_hints": {"osl": 300}}},
    "trtllm": {"conversation_params": {"conversation_id": "task-7"}},
    "thunderagent": {"program_id": "task-7"},
    "openai": {"prompt_cache_key": "task-7"},
    "headers": {},
}
"""The fields of a body that are ours, beside ``vllm_xargs``."""


@pytest.mark.parametrize(("dialect", "schema"), [(dialect, each) for dialect in SPOKEN for each in SPOKEN[dialect]])
@pytest.mark.filterwarnings(
    "error",
    "ignore::ResourceWarning",  # what another test left behind may be collected here
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
def test_agent_in_every_dialect(serve: Callable[..., FakeServer], dialect: str, schema: str) -> None:
    server = serve(schema)
    assert agent(OpenAI(base_url=server.url, dialect=dialect), "task-7", predict=True) == "fine"
    assert server.ids == ["task-7"] * 4
    assert {seen.status for seen in server.seen} == {200}
    assert server.turns[-1].headers["x-dynamo-session-final"] == "true"
    spoken = dialect
    if dialect == "auto":  # what a server says of itself; Dynamo and others say nothing of use
        spoken = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}.get(schema, "headers")
    *bodies, last = server.bodies
    ours = {name for fields in FIELDS.values() for name in fields}
    for body in bodies:
        assert {name: body[name] for name in ours & set(body)} == FIELDS[spoken]
        assert ("vllm_xargs" in body) == (spoken == "vllm")
    assert ("prompt_cache_key" in last) is False  # a plain completion has none


RELEASES: list[tuple[str, str, Any]] = [
    ("vllm", "/continuum/programs/a%2Fb/release", {}),
    ("sglang", "/close_session", {"session_id": "a/b"}),
    ("thunderagent", "/programs/release", {"program_id": "a/b"}),
]


@pytest.mark.parametrize(("dialect", "path", "body"), RELEASES)
def test_release(serve: Callable[..., FakeServer], dialect: str, path: str, body: Any) -> None:
    """Closing a program tells the server, once, where the dialect has a way; not after a last step that was told, nor
    if nothing was called."""
    server = serve(dialect)
    client = OpenAI(base_url=server.url, dialect=dialect)
    with client.program("a/b") as p:
        ask(client)
    p.close()
    with client.program("a/b"):
        pass
    for calls_before in (0, 1):
        with client.program("a/b") as p:
            for _ in range(calls_before):
                ask(client)
            p.last_step()
            ask(client)
    assert [seen.body for seen in server.seen if seen.path == path] == [body]


@pytest.mark.parametrize("name", [".", "..", "...", "../release", "a.b"])
def test_dots_of_an_id_are_no_steps_of_a_path(vllm: FakeServer, name: str) -> None:
    client = OpenAI(base_url=vllm.url, dialect="vllm")
    with client.program(name):
        ask(client)
    *_, released = vllm.seen
    assert [unquote(part) for part in released.path.split("/")] == ["", "continuum", "programs", name, "release"]


def test_a_server_that_cannot_release(serve: Callable[..., FakeServer]) -> None:
    """A stock vLLM has no such endpoint: not worth a word. One that fails is one warning; the agent never notices."""
    server = serve("thunderagent")
    quiet = OpenAI(base_url=server.url, dialect="vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet.program("p") as p:
            p._state.carried_by(ClientSender(quiet), DIALECTS["vllm"], p._state.take())
    assert server.seen[-1].status == 404
    gone = OpenAI(base_url="http://127.0.0.1:9/v1", dialect="sglang", max_retries=0)

    def two_programs() -> None:
        for number in range(2):
            with pytest.raises(openai.APIConnectionError), gone.program(f"p{number}"):
                ask(gone)

    assert len(ours_of(two_programs, "release of a program failed")) == 1


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("dialect", "schema"),
    [(dialect, "openai") for dialect in ("vllm", "sglang", "trtllm", "thunderagent")]
    + [("vllm", "trtllm"), ("dynamo", "trtllm"), ("openai", "trtllm")],
)
def test_refused_fields_are_dropped(serve: Callable[..., FakeServer], dialect: str, schema: str) -> None:
    server = serve(schema)
    client = OpenAI(base_url=server.url, dialect=dialect)
    assert len(ours_of(lambda: agent(client, "task-7", predict=True), "refuses")) == 1
    assert [seen.status for seen in server.asked] == [400, 200, 200, 200, 200]
    assert server.ids == ["task-7"] * 4  # by headers
    other = OpenAI(base_url=server.url, dialect=dialect)  # the URL is known by now, to every client
    assert ours_of(lambda: agent(other, "task-8", predict=True), "nothing") == []
    assert sum(seen.status == 400 for seen in server.seen) == 1


def test_refused_async_streams_too(server: FakeServer) -> None:
    async def run() -> list[Any]:
        client = AsyncOpenAI(base_url=server.url, dialect="vllm")
        send = client.chat.completions.with_streaming_response.create
        async with client, client.program("p"), send(**ASK, stream=True) as response:
            return [line for line in await items(response.iter_lines()) if line]

    with pytest.warns(ContinuumWarning, match="vllm_xargs|session_id"):
        assert asyncio.run(run())[-1] == "data: [DONE]"
    assert [seen.status for seen in server.seen] == [400, 200]
    assert len({seen.headers["x-stainless-raw-response"] for seen in server.seen}) == 1


def test_a_refusal_of_something_else_is_the_callers(client: OpenAI, vllm: FakeServer) -> None:
    echo = "bad temperature in {'session_id': 'p'}"  # echoes our field, and is refused without it too
    with client.program("p"):
        for said, tries in (("context length exceeded", 1), (echo, 2)):
            vllm.plan.extend([Planned(400, body={"error": {"message": said}})] * tries)
            with pytest.raises(openai.BadRequestError, match=said[:15]):
                ask(client)
        assert len(vllm.seen) == 3
        ask(client)
    assert vllm.turns[-1].body["session_id"] == "p"  # the fields stay on


def test_warnings_made_errors_do_not_reach_the_agent(server: FakeServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agent(OpenAI(base_url=server.url, dialect="vllm"), "p") == "fine"


def test_the_recorders_wish_for_usage_can_be_refused(vllm: FakeServer, tmp_path: Any) -> None:
    client = OpenAI(base_url=vllm.url, dialect="vllm", record=tmp_path)
    vllm.plan.append(Planned(400, body={"error": {"message": "stream_options: extra field"}}))

    def two_streams() -> None:
        with client.program("p"):
            assert [len(list(ask(client, stream=True))) for _ in range(2)] == [4, 4]

    assert len(ours_of(two_streams, "refuses stream_options for|no token counts")) == 2
    assert ["stream_options" in body for body in vllm.bodies] == [True, False, False]
    assert all("session_id" in body for body in vllm.bodies)
    assert [turn.output_tokens for turn in read_turns(tmp_path)] == [None] * 2
    assert trace_of(tmp_path) == {}


def test_a_refusal_concerns_one_model(client: OpenAI, vllm: FakeServer) -> None:
    """Behind a gateway, models have servers of their own."""
    vllm.refuses = lambda schema, route, body: refusal("openai" if body["model"] == "strict" else schema, route, body)
    with client.program("p"):
        with pytest.warns(ContinuumWarning, match="refuses .*for model strict"):
            ask(client, model="strict")
        for model in ("strict", "m", "strict"):
            ask(client, model=model)
    assert ["session_id" in turn.body for turn in vllm.turns] == [False, False, True, False]
    with client.program("q"):
        ask(client, model="strict")
    assert vllm.released == vllm.released_by_header == ["p"]  # of q there was nothing to release


# --------------------------------------------------------------------------------------------- auto


def test_auto_asks_once(serve: Callable[..., FakeServer], vllm: FakeServer) -> None:
    server = serve("sglang")
    client = OpenAI(base_url=server.url, dialect="auto")
    for number in range(3):
        with client.program(f"p{number}"):
            ask(client)
    assert [turn.body["session_id"] for turn in server.turns] == ["p0", "p1", "p2"]

    async def run() -> None:
        other = AsyncOpenAI(base_url=vllm.url, dialect="auto")
        async with other.program("p"):
            await asyncio.gather(*(ask(other) for _ in range(8)))
            await ask(other)

    asyncio.run(run())
    assert vllm.xargs[-1]["program_id"] == "p"
    assert vllm.ids == ["p"] * 9
    assert [[seen.path for seen in each.seen].count("/v1/models") for each in (server, vllm)] == [1, 1]


def test_auto_with_a_server_that_lists_nothing(server: FakeServer) -> None:
    client = OpenAI(base_url=server.root + "/odd", dialect="auto")
    with client.program("p"):
        ask(client)
    assert [(seen.path, seen.status) for seen in server.seen] == [("/odd/models", 404), ("/odd/chat/completions", 200)]


def test_auto_asks_again_where_nobody_was_there(vllm: FakeServer) -> None:
    client = OpenAI(base_url=vllm.url, dialect="auto", max_retries=0)
    closed = client.with_options(base_url="http://127.0.0.1:9/v1")
    with client.program("p"):
        for _ in range(2):
            with pytest.raises(openai.APIConnectionError):
                ask(closed)
        assert endpoints.begin_probe("http://127.0.0.1:9/v1/")  # not settled
        ask(client)
    assert vllm.xargs != [{}]


def test_auto_survives_a_cancelled_call(vllm: FakeServer, tmp_path: Any) -> None:
    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="auto", record=tmp_path)
        async with client.program("p") as p:
            ran(p, "pytest")
            task = asyncio.create_task(ask(client))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ask(client)

    asyncio.run(run())
    assert vllm.xargs[-1]["last_func_call"] == "pytest"
    assert (tmp_path / "trace.jsonl").read_text().count('"kind":"end"') == 1  # no call is still waited for


def test_hosts_that_are_known_are_not_asked(server: FakeServer) -> None:
    assert endpoints.dialect_of(AUTO, "https://api.openai.com/v1/") is DIALECTS["openai"]
    assert endpoints.dialect_of(AUTO, server.url) is AUTO
    assert endpoints.dialect_of(DIALECTS["vllm"], "https://api.openai.com/v1/") is DIALECTS["vllm"]


# ------------------------------------------------------------------------------------- names, options


def test_dialects_by_name(serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownDialect, match=r"'vlm'.*headers, vllm, sglang"):
        OpenAI(dialect="vlm")  # type: ignore[arg-type]
    monkeypatch.setenv("CONTINUUM_DIALECT", "vlm")
    with pytest.raises(UnknownDialect, match="CONTINUUM_DIALECT 'vlm'"):
        OpenAI()
    server = serve("thunderagent")
    monkeypatch.setenv("CONTINUUM_DIALECT", "thunderagent")
    client = OpenAI(base_url=server.url)
    with client.program("p"):
        ask(client)
    assert server.turns[0].body["program_id"] == "p"


@pytest.mark.parametrize("ours", [False, True])
def test_tags_given_to_a_framework_are_released(client: OpenAI, vllm: FakeServer, ours: bool) -> None:
    """``headers()`` and ``extra_body()`` in a program: the client that opened the program releases it, once."""
    plain = openai.OpenAI(base_url=vllm.url, api_key="k")
    with client.program("p") as p:
        if ours:
            ask(client)
        ask(plain, extra_headers=headers(), extra_body=extra_body())
        with p.child("c"):
            for parent, given in (("p", {}), ("other", {"parent_id": "other"})):
                ask(plain, extra_headers=headers(**given), extra_body=extra_body(**given))
                sent = vllm.turns[-1]
                assert sent.headers["x-parent-session-id"] == sent.body["vllm_xargs"]["parent_id"] == parent
                assert "x-turn-id" not in sent.headers  # they may be sent with many calls
                assert "turn_id" not in sent.body["vllm_xargs"]
    assert vllm.ids == ["p"] * (1 + ours) + ["c"] * 2
    with client.program("last"):
        ask(plain, extra_body=extra_body(last_step=True))
    with client.program("unused"):
        pass
    assert vllm.released == ["c", "p"]
    sent = {"program_id": "x", "pred_tool": "ls", "pred_tool_s": 1, "last_func_call": "cat", "last_tool_duration_s": 2}
    assert extra_body("x", predict=("ls", 1), last_tool=("cat", 2))["vllm_xargs"] == sent  # of no program here
    assert (headers("x")["X-Session-ID"], headers(), extra_body()) == ("x", {}, {})


def test_the_callers_own_fields_win(client: OpenAI, vllm: FakeServer, server: FakeServer) -> None:
    theirs: Any = {"session_id": "theirs", "vllm_xargs": {"program_id": "theirs", "mine": 1}}
    with client.program("p") as p:
        p.last_step()
        ask(client, extra_body=theirs, extra_headers={"x-session-id": "theirs"})
    (seen,) = vllm.turns
    turn_id = seen.headers["x-turn-id"]
    assert (seen.program_id, seen.body["session_id"]) == ("theirs", "theirs")
    assert seen.body["vllm_xargs"] == {"program_id": "theirs", "mine": 1, "is_last_step": 1, "turn_id": turn_id}
    assert theirs["vllm_xargs"] == {"program_id": "theirs", "mine": 1}  # not written into
    other = OpenAI(base_url=server.url, dialect="openai")
    with other.program("x" * 200):
        ask(other, prompt_cache_key="theirs")
        ask(other)
    assert [len(turn.body["prompt_cache_key"]) for turn in server.turns] == [6, 63]
    assert server.ids == ["x" * 200] * 2
    json.dumps(server.turns[1].body)
