"""The same agent in every dialect, against servers that refuse whatever is not in their schema."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_server import FakeServer, Planned, refusal

from continuum_client import AsyncOpenAI, ContinuumWarning, OpenAI, UnknownDialect, extra_body, headers
from continuum_client.dialects import DIALECTS
from continuum_client.endpoints import endpoints

SPOKEN = {
    "headers": ["openai", "vllm", "sglang", "dynamo", "trtllm", "thunderagent"],
    "vllm": ["vllm"],
    "sglang": ["sglang", "vllm"],
    "dynamo": ["dynamo"],
    "trtllm": ["trtllm"],
    "thunderagent": ["thunderagent"],
    "openai": ["openai", "vllm", "sglang", "dynamo", "trtllm", "thunderagent"],
    "auto": ["openai", "vllm", "sglang", "dynamo", "trtllm"],
}
PAIRS = [(dialect, schema) for dialect, schemas in SPOKEN.items() for schema in schemas]
TOOLS: Any = [{"type": "function", "function": {"name": "pytest", "parameters": {"type": "object", "properties": {}}}}]
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ours_of(work: Callable[[], object], match: str) -> list[str]:
    """Our warnings while ``work`` runs; each must match."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    ours = [str(one.message) for one in caught if issubclass(one.category, ContinuumWarning)]
    assert all(re.search(match, message) for message in ours), ours
    return ours


def agent(client: OpenAI, program_id: str) -> str:
    """Calls tools until the model stops asking; one stream, one guess, a last step that is known."""
    messages: list[Any] = [{"role": "user", "content": "fix it"}]
    with client.program(program_id, output_tokens=300) as p:
        while True:
            p.predict("pytest", 1.5, p90=9)
            reply = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                break
            for call in reply.tool_calls:
                with p.tool(call.function.name, expect_s=2):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
        p.last_step()
        for _ in client.completions.create(model="m", prompt="summary", stream=True):
            pass
    return str(reply.content)


@pytest.mark.parametrize(("dialect", "schema"), PAIRS)
def test_agent_in_every_dialect(serve: Callable[..., FakeServer], dialect: str, schema: str) -> None:
    server = serve(schema)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agent(OpenAI(base_url=server.url, dialect=dialect), "task-7") == "fine"
    assert [turn.program_id for turn in server.turns] == ["task-7"] * 4
    assert {seen.status for seen in server.seen} == {200}
    bodies = [turn.body for turn in server.turns]
    last = server.turns[-1].headers
    assert last["x-dynamo-session-final"] == "true"
    expected = {
        "vllm": {"session_id": "task-7"},
        "sglang": {"session_id": "task-7"},
        "dynamo": {"nvext": {"agent_hints": {"osl": 300}}},
        "trtllm": {"conversation_params": {"conversation_id": "task-7"}},
        "thunderagent": {"program_id": "task-7"},
        "openai": {"prompt_cache_key": "task-7"},
        "headers": {},
    }
    spoken = dialect
    if dialect == "auto":  # what a server says of itself; Dynamo and others say nothing of use
        spoken = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}.get(schema, "headers")
    if spoken == "openai":
        assert "prompt_cache_key" not in bodies.pop()  # a plain completion has none
    ours = {"session_id", "vllm_xargs", "nvext", "conversation_params", "program_id", "prompt_cache_key"}
    for body in bodies:
        sent = {name: body[name] for name in ours & set(body) - {"vllm_xargs"}}
        assert sent == expected[spoken]
        assert ("vllm_xargs" in body) == (spoken == "vllm")


def test_what_vllm_is_told(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    agent(OpenAI(base_url=server.url, dialect="vllm"), "task-7")
    told = [turn.body["vllm_xargs"] for turn in server.turns]
    assert [tags.pop("turn_id") for tags in told] == [turn.headers["x-turn-id"] for turn in server.turns]
    first, second, _, last = told
    guess = {"pred_tool": "pytest", "pred_tool_s": 1.5, "pred_tool_p90_s": 9.0}
    assert first == {"program_id": "task-7", **guess}
    assert second.pop("last_tool_duration_s") >= 0
    assert second == {"program_id": "task-7", **guess, "last_func_call": "grep"}
    assert last == {"program_id": "task-7", "is_last_step": 1}


def test_release(serve: Callable[..., FakeServer]) -> None:
    """Closing a program tells the server, once, where the dialect has a way; not after a last step that was told."""
    ends = {
        "vllm": "/continuum/programs/a%2Fb/release",
        "sglang": "/close_session",
        "thunderagent": "/programs/release",
    }
    for dialect, path in ends.items():
        server = serve(dialect)
        client = OpenAI(base_url=server.url, dialect=dialect)
        with client.program("a/b") as p:
            client.chat.completions.create(**ASK)
        p.close()
        releases = [seen for seen in server.seen if seen.path == path]
        assert len(releases) == 1
        names = {"sglang": {"session_id": "a/b"}, "thunderagent": {"program_id": "a/b"}, "vllm": {}}
        assert releases[0].body == names[dialect]
        with client.program("a/b"):
            pass  # nothing was called: nothing to let go of
        with client.program("a/b") as p:
            p.last_step()
            client.chat.completions.create(**ASK)
        assert len([seen for seen in server.seen if seen.path == path]) == 1


def test_release_async(serve: Callable[..., FakeServer]) -> None:
    server = serve("sglang")

    async def run() -> None:
        client = AsyncOpenAI(base_url=server.url, dialect="sglang")
        async with client.program("waits"):
            await client.chat.completions.create(**ASK)
        assert server.seen[-1].path == "/close_session"
        with client.program("task of the loop"):
            await client.chat.completions.create(**ASK)
        while len(server.seen) < 4:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(run(), 300))
    assert server.seen[-1].body == {"session_id": "task of the loop"}


def test_a_server_that_cannot_release(serve: Callable[..., FakeServer]) -> None:
    """A stock vLLM has no such endpoint: not worth a word. One that fails is one warning; the agent never notices."""
    server = serve("thunderagent")
    quiet = OpenAI(base_url=server.url, dialect="vllm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet.program("p") as p:
            p.carried_by(server.url, quiet, p.take())
    assert server.seen[-1].status == 404
    gone = OpenAI(base_url="http://127.0.0.1:9/v1", dialect="sglang", max_retries=0)

    def two_programs() -> None:
        for number in range(2):
            with pytest.raises(openai.APIConnectionError), gone.program(f"p{number}"):
                gone.chat.completions.create(**ASK)

    assert len(ours_of(two_programs, "release of a program failed")) == 1


# ----------------------------------------------------------------------------------------- refusals

WRONG = [
    (dialect, schema) for dialect in ("vllm", "sglang", "trtllm", "thunderagent") for schema in ("openai", "dynamo")
]


@pytest.mark.parametrize(
    ("dialect", "schema"), [*WRONG, ("vllm", "trtllm"), ("trtllm", "openai"), ("dynamo", "trtllm")]
)
def test_refused_fields_are_dropped(serve: Callable[..., FakeServer], dialect: str, schema: str) -> None:
    server = serve(schema)
    client = OpenAI(base_url=server.url, dialect=dialect)
    assert len(ours_of(lambda: agent(client, "task-7"), "refuses")) == 1
    assert [turn.status for turn in server.seen if "chat" in turn.path] == [400, 200, 200, 200]
    assert [turn.program_id for turn in server.turns] == ["task-7"] * 4  # by headers
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = OpenAI(base_url=server.url, dialect=dialect)  # the URL is known by now, to every client
        agent(other, "task-8")
    assert sum(seen.status == 400 for seen in server.seen) == 1


def test_refused_async_streams_too(serve: Callable[..., FakeServer]) -> None:
    server = serve("openai")

    async def run() -> list[Any]:
        client = AsyncOpenAI(base_url=server.url, dialect="vllm")
        send = client.chat.completions.with_streaming_response.create
        async with client, client.program("p"), send(**ASK, stream=True) as response:
            return [line async for line in response.iter_lines() if line]

    with pytest.warns(ContinuumWarning, match="vllm_xargs|session_id"):
        lines = asyncio.run(run())
    assert lines[-1] == "data: [DONE]"
    assert [seen.status for seen in server.seen] == [400, 200]
    assert server.seen[0].headers["x-stainless-raw-response"] == server.seen[1].headers["x-stainless-raw-response"]


def test_a_refusal_of_something_else_is_the_callers(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    with client.program("p"):
        server.plan.append(Planned(400, body={"error": {"message": "context length exceeded"}}))
        with pytest.raises(openai.BadRequestError, match="context length"):
            client.chat.completions.create(**ASK)
        assert len(server.seen) == 1
        # one that echoes our field and is refused without it too: the fields stay on
        echo = Planned(400, body={"error": {"message": "bad temperature in {'session_id': 'p'}"}})
        server.plan.extend([echo, echo])
        with pytest.raises(openai.BadRequestError, match="bad temperature"):
            client.chat.completions.create(**ASK)
        client.chat.completions.create(**ASK)
    assert server.turns[-1].body["session_id"] == "p"


def test_warnings_made_errors_do_not_reach_the_agent(serve: Callable[..., FakeServer]) -> None:
    server = serve("openai")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert agent(OpenAI(base_url=server.url, dialect="vllm"), "p") == "fine"


def test_the_recorders_wish_for_usage_can_be_refused(serve: Callable[..., FakeServer], tmp_path: Any) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", record=tmp_path)
    server.plan.append(Planned(400, body={"error": {"message": "stream_options: extra field"}}))

    def two_streams() -> None:
        with client.program("p"):
            assert len(list(client.chat.completions.create(**ASK, stream=True))) == 4
            assert len(list(client.chat.completions.create(**ASK, stream=True))) == 4

    assert len(ours_of(two_streams, "refuses stream_options for|no token counts")) == 2
    assert [("stream_options" in seen.body, "session_id" in seen.body) for seen in server.seen[:3]] == [
        (True, True),
        (False, True),
        (False, True),
    ]


# --------------------------------------------------------------------------------------------- auto


def test_auto_asks_once(serve: Callable[..., FakeServer]) -> None:
    server = serve("sglang")
    client = OpenAI(base_url=server.url, dialect="auto")
    for number in range(3):
        with client.program(f"p{number}"):
            client.chat.completions.create(**ASK)
    assert [seen.path for seen in server.seen].count("/v1/models") == 1
    assert [turn.body["session_id"] for turn in server.turns] == ["p0", "p1", "p2"]


def test_auto_async(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")

    async def run() -> None:
        client = AsyncOpenAI(base_url=server.url, dialect="auto")
        async with client.program("p"):
            await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(8)))
            await client.chat.completions.create(**ASK)

    asyncio.run(run())
    assert [seen.path for seen in server.seen].count("/v1/models") == 1
    assert server.turns[-1].body["vllm_xargs"]["program_id"] == "p"
    assert [turn.program_id for turn in server.turns] == ["p"] * 9


def test_auto_with_a_server_that_lists_nothing(
    serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("openai")
    client = OpenAI(base_url=server.root + "/odd", dialect="auto")
    with client.program("p"):
        client.chat.completions.create(**ASK)
    assert [(seen.path, seen.status) for seen in server.seen] == [("/odd/models", 404), ("/odd/chat/completions", 200)]


def test_auto_asks_again_where_nobody_was_there(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="auto", max_retries=0)
    closed = client.with_options(base_url="http://127.0.0.1:9/v1")
    with client.program("p"):
        for _ in range(2):
            with pytest.raises(openai.APIConnectionError):
                closed.chat.completions.create(**ASK)
        assert endpoints.begin_probe("http://127.0.0.1:9/v1/")  # not settled
        client.chat.completions.create(**ASK)
    assert "vllm_xargs" in server.turns[0].body


def test_auto_survives_a_cancelled_call(serve: Callable[..., FakeServer], tmp_path: Any) -> None:
    server = serve("vllm")

    async def run() -> None:
        client = AsyncOpenAI(base_url=server.url, dialect="auto", record=tmp_path)
        async with client.program("p") as p:
            with p.tool("pytest"):
                pass
            task = asyncio.create_task(client.chat.completions.create(**ASK))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.chat.completions.create(**ASK)

    asyncio.run(run())
    assert server.turns[-1].body["vllm_xargs"]["last_func_call"] == "pytest"
    assert (tmp_path / "trace.jsonl").read_text().count('"kind":"end"') == 1  # no call is still waited for


def test_hosts_that_are_known_are_not_asked(server: FakeServer) -> None:
    assert endpoints.dialect_of("https://api.openai.com/v1/") is DIALECTS["openai"]
    assert endpoints.dialect_of(server.url) is None


# ------------------------------------------------------------------------------------- names, options


def test_unknown_dialect() -> None:
    with pytest.raises(UnknownDialect, match="'vlm': there are headers, vllm, sglang"):
        OpenAI(dialect="vlm")  # type: ignore[arg-type]


def test_an_unknown_dialect_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUUM_DIALECT", "vlm")
    with pytest.raises(UnknownDialect, match="CONTINUUM_DIALECT 'vlm': there are headers, vllm, sglang"):
        OpenAI()


def test_a_refusal_concerns_one_model(serve: Callable[..., FakeServer]) -> None:
    """Behind a gateway, models have servers of their own."""
    server = serve("vllm")
    server.refuses = lambda schema, route, body: refusal("openai" if body["model"] == "strict" else schema, route, body)
    client = OpenAI(base_url=server.url, dialect="vllm")
    with client.program("p"):
        with pytest.warns(ContinuumWarning, match="refuses .*for model strict"):
            client.chat.completions.create(model="strict", messages=ASK["messages"])
        for model in ("strict", "m", "strict"):
            client.chat.completions.create(model=model, messages=ASK["messages"])
    assert ["session_id" in turn.body for turn in server.turns] == [False, False, True, False]
    assert [seen.path for seen in server.seen if "chat" not in seen.path] == ["/continuum/programs/p/release"]
    with client.program("q"):
        client.chat.completions.create(model="strict", messages=ASK["messages"])
    assert "chat" in server.seen[-1].path  # nothing to release


@pytest.mark.parametrize("ours", [False, True])
def test_tags_given_to_a_framework_are_released(serve: Callable[..., FakeServer], ours: bool) -> None:
    """``headers()`` and ``extra_body()`` in a program: the client that opened the program releases it, once."""
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    plain = openai.OpenAI(base_url=server.url, api_key="k")
    with client.program("p") as p:
        if ours:
            client.chat.completions.create(**ASK)
        plain.chat.completions.create(**ASK, extra_headers=headers(), extra_body=extra_body())
        with p.child("c"):
            plain.chat.completions.create(**ASK, extra_headers=headers())
            assert headers()["X-Parent-Session-ID"] == "p"
            assert headers(parent_id="other")["X-Parent-Session-ID"] == "other"
            assert extra_body(parent_id="other")["vllm_xargs"]["parent_id"] == "other"
    assert [turn.program_id for turn in server.turns] == ["p"] * (1 + ours) + ["c"]
    assert [seen.path for seen in server.seen if "release" in seen.path] == [
        "/continuum/programs/c/release",
        "/continuum/programs/p/release",
    ]
    with client.program("last"):
        plain.chat.completions.create(**ASK, extra_body=extra_body(last_step=True))
    with client.program("unused"):
        pass
    assert sum("release" in seen.path for seen in server.seen) == 2


def test_dialect_from_the_environment(serve: Callable[..., FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("thunderagent")
    monkeypatch.setenv("CONTINUUM_DIALECT", "thunderagent")
    client = OpenAI(base_url=server.url)
    with client.program("p"):
        client.chat.completions.create(**ASK)
    assert server.turns[0].body["program_id"] == "p"


class House:
    """A dialect of one's own."""

    name = "house"

    def body(self, tags: Any, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {"metadata": {"run": tags.program_id}}

    def release(self, program_id: str) -> None:
        return None


def test_a_dialect_of_ones_own(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url, dialect=House())
    with client.program("p"):
        client.chat.completions.create(**ASK)
    assert server.turns[0].body["metadata"] == {"run": "p"}


def test_the_callers_own_fields_win(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    theirs: Any = {"session_id": "theirs", "vllm_xargs": {"program_id": "theirs", "mine": 1}}
    with client.program("p") as p:
        p.last_step()
        client.chat.completions.create(**ASK, extra_body=theirs, extra_headers={"x-session-id": "theirs"})
    seen = server.turns[0]
    assert seen.body["session_id"] == "theirs"
    turn_id = seen.headers["x-turn-id"]
    assert seen.body["vllm_xargs"] == {"program_id": "theirs", "mine": 1, "is_last_step": 1, "turn_id": turn_id}
    assert seen.program_id == "theirs"
    assert theirs["vllm_xargs"] == {"program_id": "theirs", "mine": 1}  # not written into


def test_a_cache_key_of_the_callers_wins(serve: Callable[..., FakeServer]) -> None:
    server = serve("openai")
    client = OpenAI(base_url=server.url, dialect="openai")
    with client.program("x" * 200):
        client.chat.completions.create(**ASK, prompt_cache_key="theirs")
        client.chat.completions.create(**ASK)
    assert [len(turn.body["prompt_cache_key"]) for turn in server.turns] == [6, 63]
    assert server.turns[0].program_id == "x" * 200
    json.dumps(server.turns[1].body)
