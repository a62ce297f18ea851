"""Our classes in openai's place: the same results, errors, retries and streams, with openai's class beside ours.

Each case runs with both, so that a pattern that does not hold for openai itself cannot pass unseen.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fake_server import FakeServer, Planned, collected
from pydantic import BaseModel

import continuum_client
from continuum_client import client as client_module
from continuum_client.dialects import HEADERS
from continuum_client.settings import OPTIONS

pytestmark = pytest.mark.filterwarnings("ignore::continuum_client.errors.ContinuumWarning")
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Answer(BaseModel):
    x: int


@pytest.fixture(params=["openai's", "ours", "ours, recording"])
def make(request: pytest.FixtureRequest, server: FakeServer, tmp_path: Any) -> Callable[..., openai.OpenAI]:
    """Makes a client of the server."""
    cls = openai.OpenAI if request.param == "openai's" else continuum_client.OpenAI
    more: dict[str, Any] = {"record": tmp_path / "record"} if "recording" in request.param else {}
    return lambda **options: cls(**{"base_url": server.url, **more, **options})


@pytest.fixture(params=["openai's", "ours", "ours, recording"])
def make_async(request: pytest.FixtureRequest, server: FakeServer, tmp_path: Any) -> Callable[..., openai.AsyncOpenAI]:
    cls = openai.AsyncOpenAI if request.param == "openai's" else continuum_client.AsyncOpenAI
    more: dict[str, Any] = {"record": tmp_path / "record"} if "recording" in request.param else {}
    return lambda **options: cls(**{"base_url": server.url, **more, **options})


# ------------------------------------------------------------------------------------------- answers


def test_answers(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    assert client.chat.completions.create(**ASK).choices[0].message.content == "fine"
    assert client.completions.create(model="m", prompt="hi").choices[0].text == " fine"
    assert client.responses.create(model="m", input="hi").output_text == "fine"
    assert client.embeddings.create(model="m", input="hi", encoding_format="float").data[0].embedding == [0.0]
    assert [model.id for model in client.models.list()] == ["m"]


def test_parse(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    assert client.chat.completions.parse(**ASK, response_format=Answer).choices[0].message.parsed == Answer(x=1)
    assert client.responses.parse(model="m", input="hi", text_format=Answer).output_parsed == Answer(x=1)


def test_streams_in_three_styles(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "fine"  # every chunk has a choice
    with client.chat.completions.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.delta") == 3
    assert final.choices[0].message.content == "fine"
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 5


def test_other_streams(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    assert "".join(c.choices[0].text for c in client.completions.create(model="m", prompt="hi", stream=True)) == " fine"
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert events[-1].type == "response.completed"
    with client.responses.stream(model="m", input="hi") as stream:
        assert stream.get_final_response().output_text == "fine"


def test_usage_is_there_for_who_asks(make: Callable[..., openai.OpenAI]) -> None:
    chunks = list(make().chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


def test_stream_as_a_context_manager_and_cut_short(make: Callable[..., openai.OpenAI]) -> None:
    with make().chat.completions.create(**ASK, stream=True) as stream:
        first = next(stream)
    assert first.choices[0].delta.role == "assistant"
    assert isinstance(stream, openai.Stream)
    assert stream.response.is_closed


def test_raw_responses(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert raw.status_code == 200
    assert raw.retries_taken == 0
    assert raw.parse().choices[0].message.content == "fine"
    streamed = client.chat.completions.with_raw_response.create(**ASK, stream=True).parse()
    assert len(list(streamed)) == 4
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        assert response.parse().choices[0].message.content == "fine"
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        assert b'"fine"' in response.read()
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        assert response.json()["choices"]


def test_results_have_openais_own_types(make: Callable[..., openai.OpenAI]) -> None:
    client = make()
    assert type(client.chat.completions.create(**ASK)).__name__ == "ChatCompletion"
    assert type(client.chat.completions.create(**ASK, stream=True)) is openai.Stream
    assert isinstance(client, openai.OpenAI)


# ------------------------------------------------------------------------------- a stream that is odd


def test_a_torn_stream(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    server.plan.append(Planned(status=200, tear=True))
    stream = make().chat.completions.create(**ASK, stream=True)
    with pytest.raises(Exception, match=r"(?i)connection|closed|read") as caught:
        list(stream)
    assert not isinstance(caught.value, (AttributeError, TypeError))


def test_an_error_inside_a_stream(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    server.events = lambda path, body: iter([{"error": {"message": "engine died"}}])  # type: ignore[method-assign]
    with pytest.raises(openai.APIError, match="engine died"):
        list(make().chat.completions.create(**ASK, stream=True))


def test_characters_split_between_packets(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    base: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    text = "известни"
    server.events = lambda path, body: iter(  # type: ignore[method-assign]
        [{**base, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}, "[DONE]"]
    )
    (chunk,) = make().chat.completions.create(**ASK, stream=True)
    assert chunk.choices[0].delta.content == text


# ------------------------------------------------------------------------------------ retries, timeouts


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_retries(make: Callable[..., openai.OpenAI], server: FakeServer, status: int) -> None:
    server.plan.extend([Planned(status), Planned(status)])
    raw = make(max_retries=3).chat.completions.with_raw_response.create(**ASK)
    assert raw.retries_taken == 2
    assert [seen.headers["x-stainless-retry-count"] for seen in server.seen] == ["0", "1", "2"]


def test_retry_headers_can_be_left_out_or_set(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    client = make(max_retries=3)
    client.chat.completions.create(**ASK, extra_headers={"x-stainless-retry-count": openai.Omit()})
    assert "x-stainless-retry-count" not in server.seen[-1].headers
    client.chat.completions.create(**ASK, extra_headers={"x-stainless-retry-count": "42"})
    assert server.seen[-1].headers["x-stainless-retry-count"] == "42"


def test_hang_ups_are_retried(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    server.plan.append(Planned(hang_up=True))
    assert make().chat.completions.create(**ASK).choices[0].message.content == "fine"
    server.plan.extend([Planned(hang_up=True)] * 3)
    with pytest.raises(openai.APIConnectionError):
        make().chat.completions.create(**ASK)


def test_timeouts(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    server.plan.extend([Planned(status=200, delay_s=5)] * 2)
    with pytest.raises(openai.APITimeoutError):
        make(max_retries=1).with_options(timeout=0.1).chat.completions.create(**ASK)
    server.wait_for(lambda: len(server.seen) == 2)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
    ],
)
def test_errors(make: Callable[..., openai.OpenAI], server: FakeServer, status: int, error: type[Exception]) -> None:
    server.plan.append(Planned(status, body={"error": {"message": "no"}}))
    with pytest.raises(error, match="no"):
        make(max_retries=0).chat.completions.create(**ASK)
    assert len(server.seen) == 1


# ------------------------------------------------------------------------------------------ the client


def test_copies_keep_options(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    client = make(default_headers={"X-Mine": "1"})
    twin = client.with_options(max_retries=7, api_key="other", default_headers={"X-More": "2"})
    assert type(twin) is type(client)
    assert (twin.max_retries, client.max_retries) == (7, 2)
    twin.chat.completions.create(**ASK)
    headers = server.seen[-1].headers
    assert (headers["x-mine"], headers["x-more"], headers["authorization"]) == ("1", "2", "Bearer other")
    assert headers["user-agent"].startswith("OpenAI/Python")


def test_missing_key(make: Callable[..., openai.OpenAI], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(openai.OpenAIError, match=r"credentials|api_key"):
        make()


def test_custom_http_client(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    sent: list[str] = []
    hooks = {"request": [lambda request: sent.append(str(request.url))]}
    with openai.DefaultHttpxClient(event_hooks=hooks) as http_client:
        make(http_client=http_client).chat.completions.create(**ASK)
    assert sent == [server.url + "/chat/completions"]


def test_azure_style_base_url(make: Callable[..., openai.OpenAI], server: FakeServer) -> None:
    client = make(base_url=server.root + "/openai/deployments/gpt", default_query={"api-version": "2026-01-01"})
    assert client.chat.completions.create(**ASK).choices[0].message.content == "fine"
    assert server.seen[-1].path == "/openai/deployments/gpt/chat/completions"


def test_closed_client(make: Callable[..., openai.OpenAI]) -> None:
    with make() as client:
        client.chat.completions.create(**ASK)
    assert client.is_closed()


# ---------------------------------------------------------------------------------------------- async


def test_async(make_async: Callable[..., openai.AsyncOpenAI], server: FakeServer) -> None:
    async def run() -> None:
        async with make_async() as client:
            assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "fine"
            assert (await client.responses.parse(model="m", input="hi", text_format=Answer)).output_parsed == Answer(
                x=1
            )
            stream = await client.chat.completions.create(**ASK, stream=True)
            chunks = await collected(stream)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "fine"
            assert type(stream) is openai.AsyncStream
            async with client.chat.completions.stream(**ASK) as events:
                assert (await events.get_final_completion()).choices[0].message.content == "fine"
            async with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as response:
                lines = [line async for line in response.iter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            async with client.chat.completions.with_streaming_response.create(**ASK) as response:
                assert (await response.parse()).choices[0].message.content == "fine"
            raw = await client.chat.completions.with_raw_response.create(**ASK)
            assert raw.parse().choices[0].message.content == "fine"

    asyncio.run(run())


def test_async_retries_and_errors(make_async: Callable[..., openai.AsyncOpenAI], server: FakeServer) -> None:
    async def run() -> None:
        async with make_async(max_retries=2) as client:
            server.plan.extend([Planned(500), Planned(429)])
            raw = await client.chat.completions.with_raw_response.create(**ASK)
            assert raw.retries_taken == 2
            server.plan.append(Planned(200, delay_s=5))
            with pytest.raises(openai.APITimeoutError):
                await client.with_options(timeout=0.1, max_retries=0).chat.completions.create(**ASK)
            server.plan.append(Planned(200, delay_s=5))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.chat.completions.create(**ASK), 0.1)

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------ wrap


class Theirs(openai.OpenAI):
    """A subclass whose constructor is its own."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, api_key="k")
        self.mark = 1


def test_wrap(server: FakeServer) -> None:
    theirs = Theirs(server.url)
    theirs.chat.completions.create(**ASK)  # a resource that points to the unwrapped client
    ours = continuum_client.wrap(theirs, implicit=False)
    assert isinstance(ours, Theirs)
    assert isinstance(ours, continuum_client.OpenAI)
    assert ours.mark == 1
    with ours.program("p") as program:
        theirs.chat.completions.create(**ASK)
        ours.chat.completions.create(**ASK)
    assert [seen.program_id for seen in server.seen] == [None, None, program.id]
    again = continuum_client.wrap(ours, dialect="openai")
    assert type(again) is type(ours)


def test_wrap_keeps_the_methods_that_another_library_replaced(server: FakeServer) -> None:
    """As LangSmith's ``wrap_openai`` replaces them: on the resources of one client."""
    theirs = openai.OpenAI(base_url=server.url)
    raw = theirs.chat.completions.with_raw_response  # a part with methods of its own is no patch
    assert continuum_client.wrap(theirs) is not theirs
    plain, calls = theirs.chat.completions.create, []
    theirs.chat.completions.create = lambda **options: calls.append(options) or plain(**options)  # type: ignore[method-assign,assignment,func-returns-value]
    ours: Any = theirs
    for dialect in ("headers", "openai"):
        ours = continuum_client.wrap(ours, dialect=dialect)
        with ours.program("p"):
            ours.chat.completions.create(**ASK)
            raw.create(**ASK)
            assert [model.id for model in ours.models.list()] == ["m"]
    assert calls == [ASK] * 2
    chats = [seen for seen in server.seen if seen.body]
    assert [(seen.program_id, seen.body.get("prompt_cache_key")) for seen in chats] == [("p", None)] * 2 + [
        ("p", "p")
    ] * 2


def test_wrap_azure(server: FakeServer) -> None:
    azure = openai.AzureOpenAI(azure_endpoint=server.root, api_version="2026-01-01", api_key="k")
    client = continuum_client.wrap(azure)
    with client.program("p"):
        assert client.chat.completions.create(**ASK).choices[0].message.content == "fine"
        assert client.with_options(timeout=9).chat.completions.create(**ASK).choices[0].message.content == "fine"
    assert [(seen.path, seen.program_id) for seen in server.seen] == [
        ("/openai/deployments/m/chat/completions", "p")
    ] * 2


def test_wrap_async(server: FakeServer) -> None:
    async def run() -> None:
        client = continuum_client.wrap(openai.AsyncOpenAI(base_url=server.url))
        async with client.program("p"):
            await client.chat.completions.create(**ASK)

    asyncio.run(run())
    assert server.seen[-1].program_id == "p"


def test_copies_share_our_settings(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = continuum_client.OpenAI(base_url=server.url, record=tmp_path / "mine", dialect="openai")
    monkeypatch.setenv("CONTINUUM_RECORD", str(tmp_path / "other"))
    monkeypatch.setenv("CONTINUUM_DIALECT", "nonsense")
    twin = client.with_options(timeout=3).copy(max_retries=0)
    assert twin._continuum is client._continuum
    assert not (tmp_path / "other").exists()
    monkeypatch.delenv("CONTINUUM_RECORD")
    again = continuum_client.wrap(
        openai.AzureOpenAI(azure_endpoint=server.root, api_version="1", api_key="k"), dialect="openai"
    )
    assert again.with_options(timeout=1)._continuum is again._continuum


def test_wrap_refuses_other_things() -> None:
    with pytest.raises(TypeError, match="an openai client"):
        continuum_client.wrap("client")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="dialekt"):
        continuum_client.wrap(openai.OpenAI(), dialekt="vllm")  # type: ignore[call-overload]


def test_wrapping_ours_keeps_its_options(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUUM_DIALECT", "sglang")
    predict = lambda runs: None  # noqa: E731
    ours = continuum_client.OpenAI(
        base_url=server.url, dialect="openai", record=tmp_path, content="digest", predict=predict, implicit=False
    )
    assert continuum_client.wrap(ours)._continuum is ours._continuum
    again = continuum_client.wrap(ours, implicit=True)._continuum
    assert (again.dialect, again.recorder) == (ours._continuum.dialect, ours._continuum.recorder)
    assert again.predict is predict
    assert again.conversations is not None
    other = continuum_client.wrap(ours, dialect="vllm", record=tmp_path / "other")._continuum
    assert (other.dialect or HEADERS).name == "vllm"
    assert other.recorder is not ours._continuum.recorder
    assert (other.predict, other.conversations) == (predict, None)
    with pytest.raises(ValueError, match="content"):
        continuum_client.wrap(ours, content="full")


@pytest.mark.parametrize(
    "options",
    [
        {"azure_endpoint": "{root}"},
        {"azure_endpoint": "{root}/", "azure_deployment": "m"},
        {"base_url": "{root}/openai/deployments/m"},
    ],
)
def test_azure_releases_at_the_servers_root(serve: Callable[..., FakeServer], options: dict[str, str]) -> None:
    server = serve("vllm")
    there = {name: value.format(root=server.root) for name, value in options.items()}
    client = continuum_client.wrap(openai.AzureOpenAI(api_version="1", api_key="k", **there), dialect="vllm")  # type: ignore[call-overload]
    with client.program("p"):
        client.chat.completions.create(**ASK)
    assert [seen.path for seen in server.seen] == [
        "/openai/deployments/m/chat/completions",
        "/continuum/programs/p/release",
    ]


def test_content_is_checked_without_a_recorder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="content 'all': there are none, digest, full"):
        continuum_client.OpenAI(content="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'none', so not 'full'"):
        continuum_client.OpenAI(record=continuum_client.Recorder(tmp_path), content="full")


# ------------------------------------------------------------------------------------------ signatures


class OfOnesOwn(openai.OpenAI):
    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(base_url=url, **more)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (continuum_client.OpenAI, openai.OpenAI),
        (continuum_client.AsyncOpenAI, openai.AsyncOpenAI),
        (client_module.AzureOpenAI, openai.AzureOpenAI),
        (client_module.AsyncAzureOpenAI, openai.AsyncAzureOpenAI),
        (type(continuum_client.wrap(OfOnesOwn("http://x", api_key="k"))), OfOnesOwn),
    ],
)
def test_signatures_at_run_time(ours: type[Any], theirs: type[Any]) -> None:
    listed, openais = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    assert list(listed) == sorted([*openais, *OPTIONS], key=lambda name: (name == "more", name in OPTIONS))
    assert {name: listed[name] for name in openais} == dict(openais)
    assert listed["content"].default == "none"


@pytest.mark.parametrize("name", ["OpenAI", "AsyncOpenAI"])
def test_editors_see_every_argument(name: str) -> None:
    """The signature that type checkers read has every argument of the installed openai's, and ours."""
    theirs = inspect.signature(getattr(openai, name).__init__)
    source = inspect.getsource(client_module)
    block = source[source.index(f"class {name}(") :].split(") -> None: ...")[0]
    listed = {line.strip().split(":")[0] for line in block.split("def __init__(")[1].splitlines()}
    assert set(theirs.parameters) - {"self"} <= listed
    assert set(OPTIONS) <= listed
