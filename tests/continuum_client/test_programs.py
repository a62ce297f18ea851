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

from continuum_client import (
    AsyncOpenAI,
    ContinuumError,
    ContinuumWarning,
    InvalidTag,
    OpenAI,
    ProgramClosed,
    current_program,
    inherit_threads,
)
from continuum_client.program import Program
from continuum_client.tool_runs import ToolRun, busy_seconds

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def vllm(serve: Callable[..., FakeServer]) -> FakeServer:
    return serve("vllm")


@pytest.fixture
def client(vllm: FakeServer) -> OpenAI:
    return OpenAI(base_url=vllm.url, dialect="vllm", implicit=False)


def ask(client: OpenAI) -> None:
    client.chat.completions.create(**ASK)


def xargs(server: FakeServer) -> list[dict[str, Any]]:
    return [turn.body.get("vllm_xargs", {}) for turn in server.turns]


# -------------------------------------------------------------------------------------------- tags


def test_calls_outside_a_program_are_untouched(client: OpenAI, vllm: FakeServer) -> None:
    ask(client)
    with client.program("p"):
        client.embeddings.create(model="m", input="hi")
        client.models.list()
    for seen in vllm.seen:
        assert seen.program_id is None
        assert "vllm_xargs" not in (seen.body or {})


def test_automatic_ids_are_unique(client: OpenAI, vllm: FakeServer) -> None:
    ids = set()
    for _ in range(50):
        with client.program() as p:
            ids.add(p.id)
    assert len(ids) == 50
    with client.program() as p:
        ask(client)
    assert vllm.turns[-1].program_id == p.id


def test_what_is_told_is_told_once(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        p.last_step()
        p.predict("grep", 0.5)
        with p.tool("pytest"):
            pass
        ask(client)
        ask(client)
    first, second = xargs(vllm)
    assert {
        "is_last_step": 1,
        "pred_tool": "grep",
        "pred_tool_s": 0.5,
        "last_func_call": "pytest",
    }.items() <= first.items()
    assert second == {"program_id": "p", "turn_id": second["turn_id"]}


def test_retries_keep_everything(client: OpenAI, vllm: FakeServer) -> None:
    vllm.plan.extend([Planned(500), Planned(hang_up=True)])
    with client.program("p") as p:
        with p.tool("pytest"):
            pass
        ask(client)
    bodies = [seen.body for seen in vllm.seen if "chat" in seen.path]
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]
    assert {seen.program_id for seen in vllm.seen if "chat" in seen.path} == {"p"}


def test_a_failed_call_leaves_its_news_to_the_next(client: OpenAI, vllm: FakeServer) -> None:
    vllm.plan.extend([Planned(401)])
    with client.program("p") as p:
        with p.tool("pytest"):
            pass
        p.predict("grep")
        p.last_step()
        with pytest.raises(openai.AuthenticationError):
            ask(client)
        ask(client)
    told = xargs(vllm)[0]
    assert told["last_func_call"] == "pytest"
    assert told["pred_tool"] == "grep"
    assert told["is_last_step"] == 1


def test_parallel_tools_tell_the_slowest_and_the_time_any_ran() -> None:
    clock = Clock()
    p = Program("p", clock)
    slow, fast, later = p.tool("slow"), p.tool("fast"), p.tool("later")
    slow.__enter__()
    clock.now_s = 101
    with fast:
        clock.now_s = 102
    clock.now_s = 105
    slow.__exit__(None, None, None)
    clock.now_s = 110  # the agent's own five seconds
    with later:
        clock.now_s = 111
    tags = p.take().tags
    assert (tags.last_func_call, tags.last_tool_duration_s) == ("slow", 6.0)
    assert slow.seconds == 5


def test_tools_measured_elsewhere_are_told_like_others() -> None:
    clock = Clock()
    clock.now_s = 100
    p = Program("p", clock)
    p.ran("pytest", 4.0, ended_ago_s=1.0)  # 95 to 99
    p.ran("grep", 1.0, ended_ago_s=3.0)  # 96 to 97
    told = p.take()
    assert (told.tags.last_func_call, told.tags.last_tool_duration_s) == ("pytest", 4.0)
    assert [(run.name, run.start_s, run.end_s) for run in told.runs] == [("pytest", 95.0, 99.0), ("grep", 96.0, 97.0)]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidTag):
            p.ran("pytest", wrong)
        with pytest.raises(InvalidTag):
            p.ran("pytest", 1.0, ended_ago_s=wrong)
    with pytest.raises(InvalidTag):
        p.ran("", 1.0)
    p.close()
    with pytest.raises(ProgramClosed):
        p.ran("pytest", 1.0)


intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


@given(intervals)
def test_busy_seconds_is_the_union(spans: list[tuple[int, int]]) -> None:
    runs = [ToolRun("t", float(start), float(start + length)) for start, length in spans]
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert busy_seconds(runs) == len(covered)


def test_a_tool_that_raises_is_measured(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        with pytest.raises(OSError, match="broken"), p.tool("pytest"):
            raise OSError("broken")
        ask(client)
    assert xargs(vllm)[0]["last_func_call"] == "pytest"


def test_expectations_fill_predictions(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        with p.tool("pytest", expect_s=12):
            pass
        p.predict("pytest")
        ask(client)
    assert xargs(vllm)[0]["pred_tool_s"] == 12


def test_sub_agents(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("main") as p:
        with p.child("helper"):
            ask(client)
        with client.program("nested"):
            ask(client)
        ask(client)
    with client.program("named", parent="elsewhere"):
        ask(client)
    assert [(tags["program_id"], tags.get("parent_id")) for tags in xargs(vllm)] == [
        ("helper", "main"),
        ("nested", "main"),
        ("main", None),
        ("named", "elsewhere"),
    ]
    assert vllm.turns[0].headers["x-parent-session-id"] == "main"
    assert vllm.turns[0].headers["x-dynamo-parent-session-id"] == "main"


def test_several_clients_in_one_program(client: OpenAI, vllm: FakeServer, server: FakeServer) -> None:
    other = OpenAI(base_url=server.url)
    with client.program("p"):
        ask(client)
        ask(client.with_options(timeout=3).copy(max_retries=0))
        ask(other)
    assert [turn.program_id for turn in (*vllm.turns, *server.turns)] == ["p"] * 3


def test_bound_client(client: OpenAI, vllm: FakeServer) -> None:
    p = client.program("bound")
    bound = client.bind(p)
    with client.program("current"):
        ask(bound)
        ask(bound.with_options(timeout=9))
        ask(client)
    assert [turn.program_id for turn in vllm.turns] == ["bound", "bound", "current"]
    assert type(bound) is OpenAI


# ------------------------------------------------------------------------------- tasks and threads


def test_tasks(vllm: FakeServer) -> None:
    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, implicit=False)

        async def call() -> None:
            await client.chat.completions.create(**ASK)

        async with client.program("p") as p:
            await asyncio.gather(call(), asyncio.create_task(call()))
            await asyncio.to_thread(lambda: ask(OpenAI(base_url=vllm.url)))
            assert current_program() is p
        assert current_program() is None

    asyncio.run(run())
    assert [turn.program_id for turn in vllm.turns] == ["p"] * 3


@pytest.mark.parametrize("how", ["anyio", "anyio, at the release", "asyncio", "asyncio, at the release"])
def test_a_cancelled_program_is_released(vllm: FakeServer, how: str) -> None:
    """A web server cancels the task of a user who went away: by anyio every await in the task is cancelled."""
    reached = asyncio.Event()

    async def agent(client: AsyncOpenAI) -> None:
        async with client.program("p"):
            await client.chat.completions.create(**ASK)
            if "release" not in how:
                reached.set()
                await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="vllm")
        post = client.post

        async def noticed(url: str, **kwargs: Any) -> Any:
            reached.set()
            await asyncio.sleep(0)
            return await post(url, **kwargs)

        _ = client.chat.completions  # made with the plain ``post``
        if "release" in how:
            client.post = noticed  # type: ignore[assignment]
        if "anyio" in how:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent, client)
                await reached.wait()
                tasks.cancel_scope.cancel()
        else:
            task = asyncio.create_task(agent(client))
            await reached.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert [seen.path for seen in vllm.seen if "chat" not in seen.path] == ["/continuum/programs/p/release"]


def test_the_event_loop_ends_with_the_program(vllm: FakeServer) -> None:
    """A plain ``with`` cannot wait for the release, so a task sends it; the end of the loop cancels that task."""

    async def run() -> None:
        client = AsyncOpenAI(base_url=vllm.url, dialect="vllm")
        with client.program("p"):
            await client.chat.completions.create(**ASK)

    asyncio.run(run())
    assert vllm.seen[-1].path == "/continuum/programs/p/release"


def test_threads_need_no_plumbing(client: OpenAI, vllm: FakeServer) -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            ask(client)

    with client.program("p"), ThreadPoolExecutor(2) as pool:
        threads = [threading.Thread(target=ask, args=(client,)), Own(), threading.Timer(0, ask, (client,))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        list(pool.map(ask, [client] * 3))
        contextvars.copy_context().run(ask, client)
    assert [turn.program_id for turn in vllm.turns] == ["p"] * 7


def test_a_pools_workers_belong_to_nobody(client: OpenAI, vllm: FakeServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        with client.program("a"):
            pool.submit(ask, client).result()
        with client.program("b"):
            pool.submit(ask, client).result()
        pool.submit(ask, client).result()
    assert [turn.program_id for turn in vllm.turns] == ["a", "b", None]


def test_inheritance_can_be_refused(client: OpenAI, vllm: FakeServer) -> None:
    inherit_threads(False)
    try:
        with client.program("p") as p, ThreadPoolExecutor(1) as pool:
            pool.submit(ask, client).result()
            pool.submit(p.bind(ask), client).result()
            thread = threading.Thread(target=ask, args=(client,))
            thread.start()
            thread.join()
    finally:
        inherit_threads(True)
    assert [turn.program_id for turn in vllm.turns] == [None, "p", None]


def test_programs_are_not_kept_alive_by_pools(client: OpenAI) -> None:
    with ThreadPoolExecutor(2) as pool:
        p = client.program("p")
        with p:
            pool.submit(int).result()
        gone = weakref.ref(p)
        del p
        gc.collect()
        assert gone() is None


def test_a_thread_of_long_standing(client: OpenAI, vllm: FakeServer) -> None:
    p = client.program("p")
    with p.active():
        ask(client)
    with p.active():
        ask(client)
    p.close()
    assert [turn.program_id for turn in vllm.turns] == ["p", "p"]


def test_left_in_another_context_than_entered(client: OpenAI) -> None:
    p = client.program("p")
    context = contextvars.copy_context()
    context.run(p.__enter__)
    p.__exit__(None, None, None)
    assert p.closed
    assert current_program() is None


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("bad", ["", "x" * 257, "a\nb", "a\r\nX-Evil: 1", "tab\t", "ünïcode", " edge", "\x7f", 7, b"p"])
def test_bad_ids(client: OpenAI, vllm: FakeServer, bad: Any) -> None:
    with pytest.raises(InvalidTag, match="program id"):
        client.program(bad)
    with pytest.raises(ValueError, match="parent id"):
        client.program("p", parent=bad)
    assert vllm.seen == []


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "2", True])
def test_bad_seconds(client: OpenAI, seconds: Any) -> None:
    with client.program("p") as p:
        with pytest.raises(InvalidTag, match="seconds"):
            p.predict("pytest", seconds)
        with pytest.raises(InvalidTag, match="p90"):
            p.predict("pytest", 1, p90=seconds)
        with pytest.raises(InvalidTag, match="expect_s"):
            p.tool("pytest", expect_s=seconds)
        assert p.take().tags.pred_tool is None


@pytest.mark.parametrize("tool", ["", "  ", "a\nb", "x" * 129, None])
def test_bad_tools(client: OpenAI, tool: Any) -> None:
    with client.program("p") as p:
        with pytest.raises(InvalidTag, match="tool"):
            p.predict(tool)
        with pytest.raises(InvalidTag, match="tool"):
            p.tool(tool)


def test_bad_output_tokens(client: OpenAI) -> None:
    with pytest.raises(InvalidTag, match="output_tokens"):
        client.program("p", output_tokens=0)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ("text", "at most 16 names"),
        ({str(n): n for n in range(17)}, "at most 16 names"),
        ({"": 1}, "1 to 64 characters"),
        ({"n" * 65: 1}, "1 to 64 characters"),
        ({3: 1}, "1 to 64 characters"),
        ({"run": "x" * 513}, "'run': longer than 512 characters"),
        ({"run": float("nan")}, "'run': not finite"),
        ({"run": 2**63}, "'run': not finite or too large"),
        ({"run": True}, "'run': expected text or a number, not bool"),
        ({"run": ["a"]}, "'run': expected text or a number, not list"),
    ],
)
def test_bad_metadata(client: OpenAI, metadata: Any, says: str) -> None:
    with pytest.raises(InvalidTag, match=says):
        client.program(metadata=metadata)


def test_a_prediction_of_a_week_counts_as_a_day(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p, p.tool("pytest", expect_s=7 * 86400):
        pass
    assert p._expected["pytest"] == 86400


def test_closing_twice_and_use_after(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        ask(client)
    p.close()
    p.close()
    for use in (p.last_step, lambda: p.predict("x"), lambda: p.tool("x"), p.__enter__, p.child, p.bind(int)):
        with pytest.raises(ProgramClosed, match="'p' is closed"):
            use()
    assert sum(seen.path.endswith("release") for seen in vllm.seen) == 1


def test_calls_after_close_go_out_untagged(client: OpenAI, vllm: FakeServer) -> None:
    with client.program("p") as p:
        p.close()
        with pytest.warns(ContinuumWarning, match="'p' is closed") as warned:
            ask(client)
        assert [warning.filename for warning in warned] == [__file__]  # the user's line, not ours
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(client)
    assert [turn.program_id for turn in vllm.turns] == [None, None]


def test_entering_twice(client: OpenAI) -> None:
    with client.program("p") as p:
        with pytest.raises(ContinuumError, match="entered already"):
            p.__enter__()
        with p.active():
            pass


def test_children_need_a_client() -> None:
    with pytest.raises(ContinuumError, match="without a client"):
        Program("p", Clock()).child()


# -------------------------------------------------------------------------- without client.program


def turns(*texts: str) -> list[Any]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def test_conversations_get_programs_of_their_own(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)

    def send(*texts: str) -> str | None:
        client.chat.completions.create(model="m", messages=turns(*texts))
        return server.turns[-1].program_id

    a1, b1 = send("same"), send("same")  # two agents that start alike
    a2 = send("same", "x", "more")
    b2 = send("same", "y", "other")
    a3 = send("same", "x", "more", "z", "and more")
    assert None not in (a1, b1)
    assert a1 != b1
    assert {a2, b2} == {a1, b1}
    assert a3 == a2
    assert send("another") not in (a1, b1)
    assert send("same", "x", "rewritten") not in (a1, b1)


def test_a_conversation_survives_a_failed_call(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url, max_retries=0)
    client.chat.completions.create(model="m", messages=turns("a"))
    server.plan.append(Planned(500))
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=turns("a", "b", "c"))
    client.chat.completions.create(model="m", messages=turns("a", "b", "c"))
    client.chat.completions.create(model="m", messages=turns("a", "b", "c", "d", "e"))
    assert len({turn.program_id for turn in server.turns}) == 1


@pytest.mark.parametrize(
    "wrong", [{"role": ["x"]}, {"role": {}, "tool_calls": 7}, {"content": {"a": [None]}}, 3, None, [[]]]
)
def test_messages_that_are_wrong_reach_the_server(server: FakeServer, wrong: Any) -> None:
    """The server refuses them; our own code does not."""
    server.plan.append(Planned(400))
    message = {"role": "user", "content": "hi", **wrong} if isinstance(wrong, dict) else wrong
    with pytest.raises(openai.BadRequestError):
        OpenAI(base_url=server.url).chat.completions.create(model="m", messages=[message])


def test_implicit_programs_of_responses(server: FakeServer) -> None:
    client = OpenAI(base_url=server.url)
    client.responses.create(model="m", input="hi", instructions="be kind")
    client.responses.create(model="m", input="hi", previous_response_id="resp")  # the server's own conversation
    client.completions.create(model="m", prompt="hi")
    assert [turn.program_id is None for turn in server.turns] == [False, True, True]


def test_nothing_is_warned_of_in_ordinary_use(client: OpenAI) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client.program("p") as p:
            ask(client)
            with p.tool("x"):
                pass
            ask(client)
