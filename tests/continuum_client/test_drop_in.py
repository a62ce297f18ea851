"""Our classes in openai's place. Each case runs with openai's two clients and with ours, and all do the same: what the
caller gets, its errors, and every request's path and number of the try."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_server import ASK, FakeServer, Planned
from pydantic import BaseModel
from sdk import ask, entered, items, value
from waiting import until

import continuum_client
from continuum_client import client as client_module
from continuum_client.options import OPTIONS, ClientOptions, OptionArguments

pytestmark = pytest.mark.filterwarnings("ignore::continuum_client.errors.ContinuumWarning")


class Answer(BaseModel):
    x: int


# ---------------------------------------------------------------------------------------------- cases


async def answers(client: Any, server: FakeServer) -> Any:
    found = [await value(ask(client)), await value(client.completions.create(model="m", prompt="hi"))]
    found.append(await value(client.responses.create(model="m", input="hi")))
    found.append(await value(client.embeddings.create(model="m", input="hi", encoding_format="float")))
    return [(type(each), each.model_dump()) for each in found], [
        model.id for model in await items(client.models.list())
    ]


async def parsed(client: Any, server: FakeServer) -> Any:
    chat = await value(client.chat.completions.parse(**ASK, response_format=Answer))
    return chat.choices[0].message.parsed, (
        await value(client.responses.parse(model="m", input="hi", text_format=Answer))
    ).output_parsed


async def streams(client: Any, server: FakeServer) -> Any:
    usage = {"stream_options": {"include_usage": True}}
    found = [await items(await value(ask(client, stream=True, **more))) for more in ({}, usage)]
    found.append(await items(await value(client.completions.create(model="m", prompt="hi", stream=True))))
    found.append(await items(await value(client.responses.create(model="m", input="hi", stream=True))))
    return [[event.model_dump() for event in stream] for stream in found]


async def streams_with_events(client: Any, server: FakeServer) -> Any:
    async with entered(client.chat.completions.stream(**ASK)) as stream:
        kinds = [event.type for event in await items(stream)]
        final = await value(stream.get_final_completion())
    async with entered(client.responses.stream(model="m", input="hi")) as stream:
        return kinds, final.model_dump(), (await value(stream.get_final_response())).output_text


async def cut_short(client: Any, server: FakeServer) -> Any:
    async with entered(await value(ask(client, stream=True))) as stream:
        first = await value(anext(stream) if hasattr(stream, "__anext__") else next(stream))
    return type(stream), first.model_dump(), stream.response.is_closed


async def raw_responses(client: Any, server: FakeServer) -> Any:
    raw = await value(client.chat.completions.with_raw_response.create(**ASK))
    streamed = await value(client.chat.completions.with_raw_response.create(**ASK, stream=True))
    found = [raw.status_code, raw.retries_taken, raw.parse().model_dump(), len(await items(streamed.parse()))]
    send = client.chat.completions.with_streaming_response.create
    async with entered(send(**ASK, stream=True)) as response:
        found += [line for line in await items(response.iter_lines()) if line]
    async with entered(send(**ASK)) as response:
        found.append((await value(response.parse())).model_dump())
    for read in ("read", "json"):
        async with entered(send(**ASK)) as response:
            found.append(await value(getattr(response, read)()))
    return found


async def torn(client: Any, server: FakeServer) -> Any:
    server.plan.append(Planned(status=200, tear=True))
    return await items(await value(ask(client, stream=True)))


async def error_in_a_stream(client: Any, server: FakeServer) -> Any:
    server.events = lambda path, body: iter([{"error": {"message": "engine died"}}])  # type: ignore[method-assign]
    return await items(await value(ask(client, stream=True)))


async def characters_split_between_packets(client: Any, server: FakeServer) -> Any:
    base: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    choice = {"index": 0, "delta": {"content": "известни"}, "finish_reason": None}
    server.events = lambda path, body: iter([{**base, "choices": [choice]}, "[DONE]"])  # type: ignore[method-assign]
    return [chunk.model_dump() for chunk in await items(await value(ask(client, stream=True)))]


async def retried(client: Any, server: FakeServer) -> Any:
    found = []
    for status in (408, 409, 429, 500, 503):
        server.plan.extend([Planned(status), Planned(status)])
        found.append((await value(client.chat.completions.with_raw_response.create(**ASK))).retries_taken)
    server.plan.append(Planned(hang_up=True))
    return found, (await value(ask(client))).model_dump()


async def retry_headers(client: Any, server: FakeServer) -> Any:
    for given in (openai.Omit(), "42"):
        await value(ask(client, extra_headers={"x-stainless-retry-count": given}))


async def hung_up(client: Any, server: FakeServer) -> Any:
    server.plan.extend([Planned(hang_up=True)] * 3)
    await value(ask(client))


async def timed_out(client: Any, server: FakeServer) -> Any:
    server.plan.extend([Planned(200, delay_s=5)] * 2)
    try:
        no_answer = openai.Timeout(60.0, read=0.1)  # connecting may take longer: the server sees every try
        await value(ask(client.with_options(timeout=no_answer, max_retries=1)))
    finally:
        await asyncio.to_thread(until, lambda: len(server.seen) == 2)


async def refused(client: Any, server: FakeServer) -> Any:
    found = []
    for status in (400, 401, 404, 422, 500):
        server.plan.append(Planned(status, body={"error": {"message": "no"}}))
        with pytest.raises(openai.APIStatusError, match="no") as caught:
            await value(ask(client.with_options(max_retries=0)))
        found.append((type(caught.value), caught.value.body))
    return found


async def copies(client: Any, server: FakeServer) -> Any:
    twin = client.with_options(max_retries=7, api_key="other", default_headers={"X-More": "2"})
    await value(ask(twin))
    headers = server.seen[-1].headers
    sent = [headers[name] for name in ("x-mine", "x-more", "authorization", "user-agent")]
    return type(twin) is type(client), twin.max_retries, client.max_retries, sent[:-1], sent[-1].partition("/")[2]


async def closed(client: Any, server: FakeServer) -> Any:
    async with entered(client) as inside:
        await value(ask(inside))
    return client.is_closed()


ENDS: dict[Callable[..., Any], Any] = {
    torn: (httpx.HTTPError, openai.APIConnectionError),  # before openai 3, and since
    error_in_a_stream: openai.APIError,
    hung_up: openai.APIConnectionError,
    timed_out: openai.APITimeoutError,
}
"""The cases that end with an error."""
CASES = [
    *(answers, parsed, streams, streams_with_events, cut_short, raw_responses, characters_split_between_packets),
    *(retried, retry_headers, refused, copies, closed, *ENDS),
]
OPENAIS: list[Any] = [openai.OpenAI, openai.AsyncOpenAI]
OURS: list[Any] = [continuum_client.OpenAI, continuum_client.AsyncOpenAI]


def outcome(case: Callable[..., Any], cls: Any, **options: Any) -> Any:
    """What the case gives, the error that ends it, and what reached the server."""
    found: Any = None
    with FakeServer() as server:
        client = cls(base_url=server.url, default_headers={"X-Mine": "1"}, **options)
        try:
            found = asyncio.run(case(client, server))
        except ENDS.get(case, ()) as error:
            found = type(error).__name__, str(error)
        tries = [(seen.path, seen.headers.get("x-stainless-retry-count")) for seen in server.seen]
    return found, tries


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_ours_do_as_openais(case: Callable[..., Any], tmp_path: Path) -> None:
    one, other = (outcome(case, cls) for cls in OPENAIS)
    assert (type(one[0]) is tuple and "Error" in str(one[0][0])) == (case in ENDS)
    for cls, openais in zip(OURS, (one, other), strict=True):
        assert outcome(case, cls) == outcome(case, cls, record=tmp_path / cls.__name__) == openais
    assert one[1] == other[1]


def test_a_cancelled_call_and_a_client_of_ones_own(server: FakeServer) -> None:
    async def run() -> None:
        server.plan.append(Planned(200, delay_s=5))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(continuum_client.AsyncOpenAI(base_url=server.url)), 0.1)

    asyncio.run(run())
    sent: list[str] = []
    hooks = {"request": [lambda request: sent.append(str(request.url))]}
    with openai.DefaultHttpxClient(event_hooks=hooks) as http_client:
        ask(continuum_client.OpenAI(base_url=server.url, http_client=http_client))
    assert sent == [server.url + "/chat/completions"]


def test_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    for cls in (*OPENAIS, *OURS):
        with pytest.raises(openai.OpenAIError, match=r"credentials|api_key"):
            cls()


# ------------------------------------------------------------------------------------------------ wrap


class Theirs(openai.OpenAI):
    """A subclass whose constructor is its own."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(base_url=url, **more)
        self.mark = 1


def test_wrap(server: FakeServer) -> None:
    theirs = Theirs(server.url)
    ask(theirs)  # makes a resource that points to the unwrapped client
    ours = continuum_client.wrap(theirs, implicit=False)
    assert isinstance(ours, Theirs)
    assert isinstance(ours, continuum_client.OpenAI)
    assert ours.mark == 1
    with ours.program("p"):
        ask(theirs)
        ask(ours)
    assert server.ids == [None, None, "p"]
    with pytest.raises(TypeError, match="programs already"):
        continuum_client.wrap(ours, dialect="openai")

    async def run() -> None:
        client = continuum_client.wrap(openai.AsyncOpenAI(base_url=server.url))
        async with client.program("q"):
            await ask(client)

    asyncio.run(run())
    assert server.ids[-1] == "q"


def test_wrap_refuses_a_client_whose_methods_another_library_replaced(server: FakeServer) -> None:
    """As LangSmith's ``wrap_openai`` replaces them: on the resources of one client. The other order works."""
    plain = openai.OpenAI(base_url=server.url)
    plain.chat.completions.with_raw_response.create(**ASK)  # a part with methods of its own is no patch
    client, calls = continuum_client.wrap(plain), []
    for each in (plain, client):
        create = each.chat.completions.create
        each.chat.completions.create = lambda create=create, **options: calls.append(options) or create(**options)  # type: ignore[method-assign,assignment,func-returns-value,misc]
    before = dict(vars(plain))
    with pytest.raises(TypeError, match=r"another library.*before"):
        continuum_client.wrap(plain)
    assert vars(plain) == before
    with client.program("p"):
        ask(client)
    assert (calls, server.ids) == ([ASK], [None, "p"])


@pytest.mark.parametrize(
    "options",
    [
        {"azure_endpoint": "{root}"},
        {"azure_endpoint": "{root}/", "azure_deployment": "m"},
        {"base_url": "{root}/openai/deployments/m"},
    ],
)
def test_wrap_azure(vllm: FakeServer, options: dict[str, str]) -> None:
    """The server's root is not the base URL: there the program is released."""
    there: Any = {name: text.format(root=vllm.root) for name, text in options.items()}
    client = continuum_client.wrap(openai.AzureOpenAI(api_version="1", api_key="k", **there), dialect="vllm")
    assert client.with_options(timeout=1)._continuum is client._continuum
    with client.program("p"):
        ask(client)
        ask(client.with_options(timeout=9))
    path = "/openai/deployments/m/chat/completions"
    assert [seen.path for seen in vllm.seen] == [path, path, "/continuum/programs/p/release"]
    assert vllm.ids == ["p", "p"]


@pytest.mark.parametrize(
    ("mistake", "error", "said"),
    [
        (lambda wrap, path: wrap("client"), TypeError, "an openai client"),
        (lambda wrap, path: wrap(openai.OpenAI(), dialekt="vllm"), TypeError, "dialekt"),
        (
            lambda wrap, path: [wrap(openai.OpenAI(), record=path, content=each) for each in ("none", "full")],
            ValueError,
            "already recorded with content='none', so not with 'full'",
        ),
        (lambda wrap, path: wrap(openai.OpenAI(), content="all"), ValueError, "'all'.*none, digest"),
        (
            lambda wrap, path: wrap(openai.OpenAI(), record=continuum_client.Recorder(path), content="full"),
            ValueError,
            "full",
        ),
    ],
)
def test_mistakes(tmp_path: Path, mistake: Callable[..., object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        mistake(continuum_client.wrap, tmp_path)


def test_options_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count for an option that is not given."""
    given = {"dialect": "sglang", "record": str(tmp_path / "env"), "content": "digest"}
    for name, text in given.items():
        monkeypatch.setenv(f"CONTINUUM_{name.upper()}", text)
    state = continuum_client.OpenAI()._continuum
    assert state.recorder is not None
    assert (state.dialect.name, state.recorder.path, state.recorder.content) == ("sglang", tmp_path / "env", "digest")
    state = continuum_client.OpenAI(dialect="auto", record=tmp_path / "own", content="none")._continuum
    assert state.recorder is not None
    assert (state.dialect.name, state.recorder.path, state.recorder.content) == ("auto", tmp_path / "own", "none")


# ------------------------------------------------------------------------------------------ signatures


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (continuum_client.OpenAI, openai.OpenAI),
        (continuum_client.AsyncOpenAI, openai.AsyncOpenAI),
        (client_module.tagged(openai.AzureOpenAI), openai.AzureOpenAI),
        (client_module.tagged(openai.AsyncAzureOpenAI), openai.AsyncAzureOpenAI),
        (type(continuum_client.wrap(Theirs("http://x", api_key="k"))), Theirs),
    ],
)
def test_signatures(ours: type[Any], theirs: type[Any]) -> None:
    """At run time ours has every argument of the installed openai's, and our options. Type checkers read the same."""
    listed, openais = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    assert list(listed) == sorted([*openais, *OPTIONS], key=lambda name: (name == "more", name in OPTIONS))
    assert {name: listed[name] for name in openais} == dict(openais)
    assert (listed["content"].default, listed["implicit"].default) == (None, True)
    assert {name: hint.__forward_arg__ for name, hint in OptionArguments.__annotations__.items()} == {
        field.name: field.type for field in fields(ClientOptions)
    }
    if theirs in OPENAIS:
        assert set(listed) <= set(client_module.AllArguments.__annotations__)


@pytest.mark.parametrize("name", ["OpenAI", "AsyncOpenAI"])
def test_copies_show_openai_s_parameters_and_ours(name: str) -> None:
    """The signatures name all parameters, so that an editor can offer them."""
    ours, theirs = getattr(continuum_client, name), getattr(openai, name)
    for method in ("copy", "with_options"):
        shown = inspect.signature(getattr(ours, method)).parameters
        assert {*inspect.signature(getattr(theirs, method)).parameters} == {*shown} - {*OPTIONS}
        assert {*OPTIONS} <= {*shown}
        assert {*shown} - {"self"} <= {*client_module.CopyArguments.__annotations__}


def test_a_copy_with_other_options_of_ours(server: FakeServer, tmp_path: Path) -> None:
    client = continuum_client.OpenAI(base_url=server.url, api_key="k", dialect="headers")
    twin: Any = client.with_options(**{"dialect": "vllm", "record": tmp_path})
    assert (client._continuum.dialect.name, twin._continuum.dialect.name) == ("headers", "vllm")
    assert (client._continuum.recorder, twin._continuum.recorder is None) == (None, False)
    assert client.with_options(timeout=3)._continuum is client._continuum
    assert client.with_options(dialect=None)._continuum is client._continuum
