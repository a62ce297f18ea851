"""The client's bounds: a case below, at and above each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from continuum_traces.records import read_turns
from fake_server import FakeServer, Planned, as_event, streaming
from sdk import TOOLS, ask, ours_of
from test_proxy import CHAT, chat, through

from continuum_client import InvalidTag, OpenAI
from continuum_client import proxy as proxy_module
from continuum_client import sending as sending_module
from continuum_client.conversation import Conversations, shape_of
from continuum_client.ending import close_all
from continuum_client.errors import Once
from continuum_client.options import ClientOptions, ClientState
from continuum_client.recorder import Recorder
from continuum_client.reply import Reply
from continuum_client.tagging import check_id, check_seconds, check_tool
from continuum_client.tools import ToolRun
from continuum_client.turns import EndedCall, calls_after, join

STATE = ClientState(ClientOptions(dialect="headers"))


def said(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


# ------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(("others", "remembered"), [(4094, True), (4095, True), (4096, False)])
def test_the_latest_4096_conversations_are_remembered(others: int, remembered: bool) -> None:
    conversations = Conversations(lambda: STATE.program()._state)
    first = conversations.find("/chat/completions", said("first"))
    assert first is not None
    for number in range(others):
        conversations.find("/chat/completions", said(f"other {number}"))
    again = conversations.find("/chat/completions", said("first", "more"))
    assert again is not None
    assert (again.program is first.program, first.program.closed) == (remembered, not remembered)
    assert len(conversations.forget()) == min(others + 1, 4096)


@pytest.mark.parametrize(("number", "given"), [(999, 999), (1000, 1000), (1001, 1000)])
def test_a_process_has_1000_warnings(number: int, given: int) -> None:
    once = Once()
    assert len(ours_of(lambda: [once.warn(str(each), f"number {each}") for each in range(number)], "number")) == given


def test_the_end_of_a_process_takes_five_seconds(client: OpenAI, vllm: FakeServer) -> None:
    """Then no further release is begun; the programs are closed all the same."""
    programs = [client.program(f"{seconds}") for seconds in (0.0, 4.999, 5.0, 5.001)]
    for program in programs:
        with program.active():
            ask(client)
    instants = iter([100.0, *(100.0 + float(program.id) for program in programs)])
    close_all([program._state for program in programs], lambda: next(instants))
    assert vllm.released == ["0.0", "4.999"]
    assert all(program.closed for program in programs)


@pytest.mark.parametrize(("beyond", "tries"), [(-1, 2), (0, 2), (1, 1)])
def test_20000_characters_of_a_refusal_are_searched(client: OpenAI, vllm: FakeServer, beyond: int, tries: int) -> None:
    """The field's name ends at the last of them, one before, or one after."""
    vllm.plan.append(Planned(400, body={"error": {"message": "x"}}))
    with client.program("p"), pytest.raises(openai.BadRequestError) as caught:
        ask(client)
    field = " session_id"
    padding = "." * (20_000 + beyond - str(caught.value).index("x") - len(field))
    vllm.seen.clear()
    vllm.plan.append(Planned(400, body={"error": {"message": padding + field}}))
    with client.program("q"), nullcontext() if tries == 2 else pytest.raises(openai.BadRequestError):
        ask(client)
    assert len(vllm.asked) == tries


@pytest.mark.parametrize(
    ("check", "longest"), [(check_id, 256), (check_tool, 128)], ids=["an id's length", "a tool's length"]
)
def test_lengths(check: Callable[[str], str], longest: int) -> None:
    for length in (1, longest - 1, longest):
        assert check("x" * length) == "x" * length
    for length in (0, longest + 1):
        with pytest.raises(InvalidTag):
            check("x" * length)


def test_a_number_of_seconds_is_limited_to_a_day() -> None:
    assert [check_seconds(each, "s") for each in (0, 86_399, 86_400, 86_401)] == [0, 86_399, 86_400, 86_400]
    with pytest.raises(InvalidTag):
        check_seconds(-1e-9, "s")


def test_a_completion_s_prompt_counts_as_messages_of_512_characters() -> None:
    assert [len(shape_of({"prompt": "x" * chars}).marks) for chars in (511, 512, 1023, 1024)] == [0, 1, 1, 2]


@pytest.mark.parametrize("during", [0, 55, 56, 57, 300])
def test_256_tools_are_kept_for_the_next_call(during: int) -> None:
    """200 ran before a call that failed. Those that ran while it was sent come after them."""
    program = STATE.program("p")._state

    def run(name: str, number: int) -> None:
        for _ in range(number):
            program.ran(ToolRun(name, 0.0, 1.0))

    run("before", 200)
    taken = program.take()
    run("during", during)
    program.give_back(taken)
    run("after", 1)
    kept = [each.name for each in program.take().runs]
    assert kept == [*["before"] * 200, *["during"] * during, "after"][:256]


@pytest.mark.parametrize(("chars", "second"), [(253, "/2"), (254, "/2"), (255, None)])
def test_a_second_conversation_s_id_has_256_characters_at_most(chars: int, second: str | None) -> None:
    """The proxy's own id, and its number; else a random id."""
    proxy = proxy_module.Proxy("http://127.0.0.1:1", ClientState(ClientOptions("vllm")), "p" * chars)
    assert proxy._begin().id == "p" * chars
    other = proxy._begin()
    assert other.parent_id == "p" * chars
    assert other.id == f"{other.parent_id}{second}" if second else len(other.id) == 32


# ------------------------------------------------------------------------------------------ statuses


@pytest.mark.parametrize(("status", "tries"), [(400, 2), (422, 2), (401, 1), (403, 1)])
def test_statuses_that_refuse_a_field(client: OpenAI, vllm: FakeServer, status: int, tries: int) -> None:
    vllm.plan.append(Planned(status, body={"error": {"message": "session_id"}}))
    with client.program("p"), nullcontext() if tries == 2 else pytest.raises(openai.APIStatusError):
        ask(client)
    assert len(vllm.asked) == tries


@pytest.mark.parametrize(("status", "warnings"), [(200, 0), (404, 0), (405, 0), (403, 1), (501, 1)])
def test_statuses_of_a_release(client: OpenAI, vllm: FakeServer, status: int, warnings: int) -> None:
    vllm.pages["/continuum/programs/p/release"] = status, {}

    def work() -> None:
        with client.program("p"):
            ask(client)

    assert len(ours_of(work, "release of a program failed")) == warnings
    assert vllm.released == ["p"]


@pytest.mark.parametrize("through_proxy", [False, True])
def test_a_server_that_is_too_slow_is_asked_once(
    vllm: FakeServer, monkeypatch: pytest.MonkeyPatch, through_proxy: bool
) -> None:
    """Later calls do not wait for its model list again."""
    vllm.delays_s["/v1/models"] = 30.0
    monkeypatch.setitem(sending_module._OWN_OPTIONS, "timeout", 0.1)
    monkeypatch.setattr(proxy_module, "ASK_TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    if through_proxy:
        with through(vllm, dialect="auto") as agent:
            assert [agent.post(CHAT, json=chat(said("hi")["messages"])).status_code for _ in range(3)] == [200] * 3
    else:
        client = OpenAI(base_url=vllm.url, dialect="auto")
        with client.program("p"):
            for _ in range(3):
                ask(client)
    assert [seen.path for seen in vllm.seen].count("/v1/models") == 1
    assert vllm.xargs == [{}] * 3


# ------------------------------------------------------------------------------------------- replies


@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
def test_the_last_line_of_a_stream_may_be_unfinished(tmp_path: Path, end: str) -> None:
    """Its token counts are read all the same, in a stream that is read raw, and behind the proxy."""
    base: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    choice = {"index": 0, "delta": {"content": "fine"}, "finish_reason": "stop"}
    events = (
        {**base, "choices": [choice]},
        {**base, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}},
        "[DONE]",
    )
    sent = b"".join(map(as_event, events)).decode().removesuffix("\n\n") + end

    async def answer(request: web.BaseRequest, number: int) -> web.StreamResponse:
        stream = await streaming(request)
        await stream.write(sent.encode())
        return stream

    asks: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    with FakeServer("vllm", handler=answer) as server:
        client = OpenAI(base_url=server.url, record=tmp_path / "client")
        with (
            client.program("p"),
            client.chat.completions.with_streaming_response.create(
                model="m", messages=[{"role": "user", "content": "hi"}], **asks
            ) as response,
        ):
            raw = b"".join(response.iter_bytes())
        with through(server, tmp_path / "proxy") as agent:
            forwarded = agent.post(CHAT, json=chat(said("hi")["messages"], **asks)).content
    assert raw == forwarded == sent.encode()
    for place in ("client", "proxy"):
        assert [(turn.output_tokens, turn.error) for turn in read_turns(tmp_path / place)] == [(7, None)]


@pytest.mark.parametrize(
    ("reasoning", "carried", "new"), [(0, None, 20), (1, 9, 21), (9, 1, 29), (10, 0, 30), (11, 0, 30)]
)
def test_reasoning_is_not_carried_into_the_next_prompt(reasoning: int, carried: int | None, new: int) -> None:
    def ended(prompt_tokens: int) -> EndedCall:
        reply, details = Reply(), {"reasoning_tokens": reasoning}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 10, "completion_tokens_details": details}
        reply.take({"choices": [], "usage": usage})
        return EndedCall(0.0, 1.0, reply)

    joined = join(ended(100), ended(130))
    assert (joined.carried_tokens, joined.new_input_tokens, joined.kept_tokens) == (carried, new, None)


@pytest.mark.parametrize(
    ("start_s", "end_s", "call"),
    [(11.0, 12.5, (1.0, 1.5)), (10.0, 12.0, (0.0, 2.0)), (8.0, 12.0, (0.0, 2.0)), (5.0, 9.0, (0.0, 0.0))],
)
def test_a_tool_counts_from_the_end_of_the_answer(start_s: float, end_s: float, call: tuple[float, float]) -> None:
    """At 10 s. Tools may begin while the answer still comes."""
    ended = EndedCall(0.0, 10.0, Reply())
    (found,) = calls_after(ended, [ToolRun("ls", start_s, end_s)], lambda name, arguments: name)
    assert (found.start_s, found.duration_s) == call


@pytest.mark.parametrize(
    ("name", "tool"), [("grep", "grep"), ("gr\u0007ep", None), ("x" * 128, "x" * 128), ("\u2028", None)]
)
def test_a_tool_s_name_that_cannot_be_sent_costs_no_request(vllm: FakeServer, name: str, tool: str | None) -> None:
    """A model invents it; the proxy takes the tool's time for nobody's."""
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "name": name}}]
    messages: list[Any] = [*said("hi")["messages"]]
    with through(vllm) as agent:
        for _ in range(2):
            answer = agent.post(CHAT, json=chat(messages, tools=tools))
            assert answer.status_code == 200
            message = answer.json()["choices"][0]["message"]
            messages += [message, {"role": "tool", "tool_call_id": "call0", "content": "here"}]
    assert [tags.get("last_func_call") for tags in vllm.xargs] == [None, tool]


def test_a_tool_s_key_may_be_too_long(vllm: FakeServer, tmp_path: Path) -> None:
    """The name that a recorder's ``tool_key`` gives is checked like any other."""
    state = ClientState(ClientOptions("vllm", Recorder(tmp_path, tool_key=lambda name, arguments: name * 129)))
    proxy = proxy_module.Proxy(vllm.url, state, "p")
    reply = Reply()
    reply.take({"choices": [{"message": {"tool_calls": [{"function": {"name": "x"}}]}, "finish_reason": "stop"}]})
    proxy._turn_ended(proxy.program, reply, 0.0)
    proxy._report_tools(proxy.program)
    assert proxy.program.take().runs == ()
