"""What a program tells, when, and whose calls are its own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import openai
import pytest
from fake_server import FakeServer, Planned
from hypothesis import given
from hypothesis import strategies as st
from sdk import ask
from waiting import until

from continuum_client import (
    AsyncOpenAI,
    ContinuumError,
    ContinuumWarning,
    InvalidTag,
    OpenAI,
    Prediction,
    ProgramClosed,
    current_program,
)
from continuum_client.options import ClientOptions, ClientState
from continuum_client.program import Program
from continuum_client.tools import ToolRun, busy_seconds

# -------------------------------------------------------------------------------------------- tags


def test_calls_outside_a_program_are_untouched(client: OpenAI, vllm: FakeServer) -> None:
    ask(client)
    with client.program("p"):
        client.embeddings.create(model="m", input="hi")
        client.models.list()
    for seen in vllm.seen:
        assert seen.program_id is None
        assert "vllm_xargs" not in (seen.body or {})


def test_what_is_told_is_told_once(client: OpenAI, vllm: FakeServer) -> None:
    """A failed call leaves its news to the next, where newer hints count more; every try of a call has the same. A tool
    that raises is measured, and what was expected of it fills its prediction."""
    told = {"is_last_step": 1, "pred_tool": "pytest", "pred_tool_s": 0.5, "last_func_call": "pytest"}
    vllm.plan.extend([Planned(401), Planned(401), Planned(500), Planned(hang_up=True)])
    with client.program("p") as p:
        p.last_step()
        p.kv_ttl(1e9)
        with pytest.raises(OSError, match="broken"), p.tool("pytest", expect_s=0.5):
            raise OSError("broken")
        p.predict("pytest")
        for _ in range(2):
            with pytest.raises(openai.AuthenticationError):
                ask(client)
        p.kv_ttl(2)
        ask(client)
        ask(client)
    *sent, last = (body["vllm_xargs"] for body in vllm.bodies)
    assert sent[2] == sent[3] == sent[4]
    assert all(told.items() <= tags.items() for tags in sent)
    assert [tags["kv_ttl_s"] for tags in sent] == [86_400] * 2 + [2] * 3
    assert last.keys() == {"program_id", "turn_id"}
    assert {seen.program_id for seen in vllm.asked} == {"p"}


STARTED, FINISHED = {"event": "started", "pred_tool_s": 2.5}, {"event": "finished"}


@pytest.mark.parametrize("schema", ["plugin", "vllm"])
def test_a_tool_tells_the_server_of_its_start_and_its_end(schema: str) -> None:
    """Also if it raises. Not before a call was sent, and not unless it is asked to. Stock vLLM knows no events."""
    with FakeServer(schema) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        client = OpenAI(base_url=server.url, dialect="vllm", max_retries=0)
        with client.program("a/b") as p:
            with p.tool("early", expect_s=1.0, tell=True):
                pass
            ask(client)
            with p.tool("quiet", expect_s=9.0):
                pass
            with p.tool("unknown", tell=True):
                pass
            with pytest.raises(OSError, match="broken"), p.tool("pytest", expect_s=2.5, tell=True):
                raise OSError("broken")
            with p.tool("pytest", tell=True):  # what was expected before
                pass
        assert server.tool_events == [FINISHED, STARTED, FINISHED, STARTED, FINISHED]
        assert {seen.path for seen in server.seen if seen.path.endswith("/events")} == {
            "/continuum/programs/a%2Fb/events"
        }
        assert server.released == ["a/b"]


def test_events_of_an_asynchronous_client_do_not_delay_its_tool(vllm: FakeServer) -> None:
    async def agent() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="vllm", max_retries=0)
        async with client.program("p") as p:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            async with p.tool("pytest", expect_s=2.5, tell=True):
                assert vllm.tool_events == []
                await asyncio.to_thread(until, lambda: vllm.tool_events == [STARTED])
        await asyncio.to_thread(until, lambda: vllm.tool_events == [STARTED, FINISHED])

    asyncio.run(agent())


@pytest.mark.parametrize("dialect", ["headers", "sglang", "thunderagent"])
def test_servers_without_events_get_none(dialect: str) -> None:
    with FakeServer(dialect if dialect != "headers" else "vllm") as server:
        client = OpenAI(base_url=server.url, dialect=dialect, max_retries=0)
        with client.program("p") as p:
            ask(client)
            with p.tool("pytest", expect_s=1.0, tell=True):
                pass
        assert server.tool_events == []


def test_parallel_tools_tell_the_slowest_and_the_time_any_ran() -> None:
    now_s = [100.0]
    p = ClientState(ClientOptions(dialect="headers"), clock=lambda: now_s[0]).program("p")
    slow, fast, later = p.tool("slow"), p.tool("fast"), p.tool("later")
    steps = [(101, slow.__enter__), (101, fast.__enter__), (102, fast.__exit__), (105, slow.__exit__)]
    for now_s[0], step in [*steps, (110, later.__enter__), (111, later.__exit__)]:  # five seconds are the agent's own
        step()  # type: ignore[operator]
    tags = p._state.take().tags
    assert (tags.last_func_call, tags.last_tool_duration_s, slow.seconds) == ("slow", 5.0, 4)


def test_tools_measured_elsewhere_are_told_like_others() -> None:
    p = ClientState(ClientOptions(dialect="headers"), clock=lambda: 100.0).program("p")
    p.ran("pytest", 4.0, ended_ago_s=1.0)  # 95 to 99
    p.ran("grep", 1.0, ended_ago_s=3.0)  # 96 to 97
    told = p._state.take()
    assert (told.tags.last_func_call, told.tags.last_tool_duration_s) == ("pytest", 4.0)
    assert [(run.name, run.start_s, run.end_s) for run in told.runs] == [("pytest", 95.0, 99.0), ("grep", 96.0, 97.0)]


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


@given(intervals)
def test_busy_seconds_is_the_union(spans: list[tuple[int, int]]) -> None:
    runs = [ToolRun("t", float(start), float(start + length)) for start, length in spans]
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert busy_seconds(runs) == len(covered)


def test_a_program_that_is_handed_over(vllm: FakeServer) -> None:
    here, there = (OpenAI(base_url=vllm.url, dialect="vllm") for _ in range(2))
    with here.program("p", parent="above") as p:
        ask(here)
        text = p.handoff()
        with pytest.raises(ProgramClosed):
            p.handoff()
    assert vllm.released == []
    with there.resume(text):
        ask(there)
    first, second = vllm.xargs
    assert first.pop("turn_id") != second.pop("turn_id")
    assert first == second == {"program_id": "p", "parent_id": "above"}
    assert vllm.released == ["p"]


def test_sub_agents(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("main") as p:
        with p.child("helper"):
            ask(client)
        with client.program("nested"):
            ask(client)
        ask(client)
    with client.program("named", parent="elsewhere"):
        ask(client)
    parents = {tags["program_id"]: tags.get("parent_id") for tags in vllm.xargs}
    assert parents == {"helper": "main", "nested": "main", "main": None, "named": "elsewhere"}
    assert vllm.turns[0].headers["x-parent-session-id"] == "main"
    assert vllm.turns[0].headers["x-dynamo-parent-session-id"] == "main"


def test_several_clients_in_one_program(client: OpenAI, vllm: FakeServer, server: FakeServer) -> None:
    bound = client.bind(client.program("bound"))
    assert type(bound) is OpenAI
    with client.program("p"):
        for each in (client, client.with_options(timeout=3).copy(max_retries=0), OpenAI(base_url=server.url)):
            ask(each)
        for each in (bound, bound.with_options(timeout=9), client):
            ask(each)
    assert server.ids == ["p"]
    assert vllm.ids == ["p", "p", "bound", "bound", "p"]


# ------------------------------------------------------------------------------- tasks and threads


@pytest.mark.parametrize("at_the_release", [False, True])
@pytest.mark.parametrize("by", ["anyio", "asyncio"])
def test_a_cancelled_program_is_released(vllm: FakeServer, by: str, at_the_release: bool) -> None:
    """A web server cancels the task of a user who went away: by anyio every await in the task is cancelled."""

    async def run() -> None:
        client, reached = AsyncOpenAI(base_url=vllm.url, dialect="vllm"), asyncio.Event()
        post, _ = client.post, client.chat.completions  # which keeps the plain ``post``

        async def noticed(url: str, **kwargs: Any) -> Any:
            reached.set()
            await asyncio.sleep(0)
            return await post(url, **kwargs)

        async def agent() -> None:
            async with client.program("p"):
                await ask(client)
                if not at_the_release:
                    reached.set()
                    await asyncio.sleep(3600)
            await asyncio.sleep(3600)

        client.post = noticed if at_the_release else post  # type: ignore[assignment]
        if by == "anyio":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent)
                await reached.wait()
                tasks.cancel_scope.cancel()
        else:
            task = asyncio.create_task(agent())
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert vllm.released == ["p"]


def test_a_plain_with_of_an_asynchronous_client(vllm: FakeServer) -> None:
    """It cannot wait for the release. A task sends it, until the end of the event loop cancels that task; or the loop
    has ended before the program, as with a framework's ``run_sync``."""
    made: Any = {"base_url": vllm.url, "dialect": "vllm", "default_headers": {"X-Own": "1"}}

    async def run() -> None:
        client = AsyncOpenAI(**made)
        with client.program("p"):
            await ask(client)

    asyncio.run(run())
    client = AsyncOpenAI(**made)
    with client.program("q"):
        asyncio.run(ask(client))
        assert current_program() is not None
    assert vllm.released == ["p", "q"]
    assert {seen.headers.get("x-own") for seen in vllm.seen} == {"1"}
    assert len({seen.headers.get("authorization") for seen in vllm.seen}) == 1


@pytest.mark.usefixtures("instrumented")
def test_a_pools_workers_belong_to_nobody(client: OpenAI, vllm: FakeServer) -> None:
    gone = []
    with ThreadPoolExecutor(1) as pool:
        for name in ("a", "b"):
            with client.program(name) as p:
                pool.submit(ask, client).result()
            gone.append(weakref.ref(p))
        pool.submit(ask, client).result()
        assert vllm.ids == ["a", "b", None]
        del p
        gc.collect()
        assert [program() for program in gone] == [None, None]  # the pool does not keep them alive


def test_threads_belong_to_a_program_if_they_are_told(client: OpenAI, vllm: FakeServer) -> None:
    """Without ``instrument()`` a thread knows no program but the one that it is bound to."""
    with client.program("p") as p, ThreadPoolExecutor(1) as pool:
        pool.submit(ask, client).result()
        pool.submit(p.bind(ask), client).result()
        thread = threading.Thread(target=ask, args=(client.bind(p),))
        thread.start()
        thread.join()
    assert vllm.ids == [None, "p", "p"]


def test_left_in_another_context_than_entered(client: OpenAI) -> None:
    p = client.program("p")
    contextvars.copy_context().run(p.__enter__)
    with pytest.raises(ContinuumError, match="entered already"):
        p.__enter__()
    p.__exit__(None, None, None)
    assert p.closed
    assert current_program() is None


# ---------------------------------------------------------------------------------------- bad input

BAD_IDS: list[Any] = ["", "x" * 257, "a\nb", "a\r\nX-Evil: 1", "tab\t", "ünïcode", " edge", "\x7f", 7, b"p"]
BAD_SECONDS: list[Any] = [-1, float("nan"), float("inf"), "2", True]
BAD_TOOLS: list[Any] = ["", "  ", "a\nb", "x" * 129, None]
USES: list[tuple[str, Callable[[OpenAI, Program, Any], object], list[Any]]] = [
    ("program id", lambda client, p, bad: client.program(bad), BAD_IDS),
    ("parent id", lambda client, p, bad: client.program("p", parent=bad), BAD_IDS),
    ("output_tokens", lambda client, p, bad: client.program("p", output_tokens=bad), [0]),
    ("seconds", lambda client, p, bad: p.predict("pytest", bad), BAD_SECONDS),
    ("p90", lambda client, p, bad: p.predict("pytest", 1, p90=bad), BAD_SECONDS),
    ("expect_s", lambda client, p, bad: p.tool("pytest", expect_s=bad), BAD_SECONDS),
    ("seconds", lambda client, p, bad: p.ran("pytest", bad), BAD_SECONDS),
    ("ended_ago_s", lambda client, p, bad: p.ran("pytest", 1.0, ended_ago_s=bad), BAD_SECONDS),
    ("tool", lambda client, p, bad: p.predict(bad), BAD_TOOLS),
    ("tool", lambda client, p, bad: p.tool(bad), BAD_TOOLS),
    ("tool", lambda client, p, bad: p.ran(bad, 1.0), BAD_TOOLS),
    ("kv_ttl", lambda client, p, bad: p.kv_ttl(bad), BAD_SECONDS),
    ("predict True", lambda client, p, bad: OpenAI(predict=bad), [True]),
    ("predict True", lambda client, p, bad: client.program(predict=bad), [True]),
    ("tool|predicted", lambda client, p, bad: Prediction(*bad), [("",), ("t", -1.0), ("t", 1.0, float("nan"))]),
    (
        "resume",
        lambda client, p, bad: client.resume(bad),
        ["", "[]", "{}", "null", '{"program_id": "", "parent_id": "p"}'],
    ),
    ("at most 16 names", lambda client, p, bad: client.program(metadata=bad), ["text", {str(n): n for n in range(17)}]),
    ("1 to 64 characters", lambda client, p, bad: client.program(metadata={bad: 1}), ["", "n" * 65, 3]),
    ("'run': longer than 512", lambda client, p, bad: client.program(metadata={"run": bad}), ["x" * 513]),
    ("'run': not finite", lambda client, p, bad: client.program(metadata={"run": bad}), [float("nan"), 2**63]),
    ("'run': .*not (bool|list)", lambda client, p, bad: client.program(metadata={"run": bad}), [True, ["a"]]),
]


def test_bad_values_are_refused_where_they_are_given(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        for name, use, values in USES:
            for bad in values:
                with pytest.raises(InvalidTag, match=name):
                    use(client, p, bad)
        tags = p._state.take().tags
        assert (tags.pred_tool, tags.last_func_call) == (None, None)
    assert vllm.seen == []


def test_closing_twice_and_use_after(client: OpenAI, vllm: FakeServer) -> None:
    p = client.program("p")
    for _ in range(2):  # as a thread of long standing enters and leaves it
        with p.active():
            ask(client)
    for _ in range(2):
        p.close()
    uses = (p.last_step, lambda: p.predict("x"), lambda: p.tool("x"), lambda: p.ran("x", 1.0), p.__enter__, p.child)
    for use in (*uses, p.bind(int), p.handoff):
        with pytest.raises(ProgramClosed, match="'p' is closed"):
            use()
    assert (vllm.ids, vllm.released) == (["p", "p"], ["p"])


def test_calls_after_close_go_out_untagged(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        p.close()
        with pytest.warns(ContinuumWarning, match="'p' is closed"):
            ask(client)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(client)
        assert current_program() is None
        assert client.program("q").parent_id is None
    assert vllm.ids == [None, None]


# -------------------------------------------------------------------------- without client.program


def turns(*texts: str) -> list[Any]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def test_conversations_get_programs_of_their_own(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)

    def send(*texts: str) -> str | None:
        ask(client, messages=turns(*texts))
        return server.turns[-1].program_id

    a, b = send("same"), send("same")  # two agents that start alike
    assert None not in (a, b)
    assert a != b
    assert send("same", "fine", "more") == b  # the latest goes on, as an agent that was begun again does
    assert send("same", "fine", "other") == a
    assert send("same", "fine", "more", "fine", "and more") == b
    assert send("another") not in (a, b)
    assert send("same", "fine", "rewritten") not in (a, b)


@pytest.mark.parametrize(
    "wrong", [{"role": ["x"]}, {"role": {}, "tool_calls": 7}, {"content": {"a": [None]}}, 3, None, [[]]]
)
def test_messages_that_are_wrong_reach_the_server(server: FakeServer, wrong: Any) -> None:
    """The server refuses them; our own code does not."""
    server.plan.append(Planned(400))
    message = {"role": "user", "content": "hi", **wrong} if isinstance(wrong, dict) else wrong
    with pytest.raises(openai.BadRequestError):
        ask(OpenAI(base_url=server.url), messages=[message])


def test_implicit_programs_of_responses(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)
    client.responses.create(model="m", input="hi", instructions="be kind")
    client.responses.create(model="m", input="hi", previous_response_id="resp")  # the server's own conversation
    client.completions.create(model="m", prompt="hi")
    assert [name is None for name in server.ids] == [False, True, True]
