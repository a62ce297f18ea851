"""Records: right numbers, whole lines, whatever happens to the process; and continuum-bench reads them as they are."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import openai
import pytest
from continuum_traces.appender import SharedLines
from continuum_traces.records import read_turns
from fake_server import FakeServer, Planned
from sdk import agent, ask, entered, items, ran, trace_of, turns_of, value

from continuum_client import AsyncOpenAI, ContinuumWarning, OpenAI, Recorder
from continuum_client.reply import Reply
from continuum_client.tools import ToolRun
from continuum_client.turns import EndedCall, join

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads: what agents do


def records_of(path: Path) -> list[Any]:
    return list(read_turns(path))


@pytest.fixture
def client(server: FakeServer, tmp_path: Path) -> OpenAI:
    return OpenAI(base_url=server.url, record=tmp_path, max_retries=0)


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_run(client: OpenAI, server: FakeServer, tmp_path: Path, stream: bool) -> None:
    agent(client, "task-7", stream)
    usage = [server.answer("/chat/completions", seen.body)["usage"] for seen in server.turns]
    prompts = [each["prompt_tokens"] for each in usage]
    records = records_of(tmp_path)
    assert [(r.program_id, r.turn, r.prompt_tokens, r.cached_tokens, r.output_tokens, r.tools) for r in records] == [
        ("task-7", turn, each["prompt_tokens"], each["prompt_tokens_details"]["cached_tokens"], 7, tools)
        for turn, (each, tools) in enumerate(zip(usage, [("grep",), ("pytest",), ()], strict=True))
    ]
    instants = [0.0, *(instant for r in records for instant in (r.sent_s, r.finish_s))]
    assert instants == sorted(instants)
    assert [r.first_token_s is not None for r in records] == [stream] * 3
    assert json.loads((tmp_path / "manifest.json").read_text())["versions"]["openai"] == openai.__version__
    program = trace_of(tmp_path)["task-7"]
    assert (program.model, program.prompt_tokens()) == ("m", prompts)
    assert [
        (turn.output_tokens, [call.name for call in turn.tool_calls], turn.ttft_s is not None, turn.text)
        for turn in program.turns
    ] == [(7, tools, stream, None) for tools in (["run grep"], ["run pytest"], [])]
    for turn, record, following in zip(program.turns, records, records[1:], strict=False):
        assert turn.gap_s == pytest.approx(following.sent_s - record.finish_s, abs=2e-5)


@pytest.mark.parametrize("cls", [OpenAI, AsyncOpenAI])
def test_every_api(server: FakeServer, tmp_path: Path, cls: Any) -> None:
    usage: Any = {"stream_options": {"include_usage": True}}

    async def run() -> None:
        client = cls(base_url=server.url, record=tmp_path)
        raw, streaming = client.chat.completions.with_raw_response, client.chat.completions.with_streaming_response
        hi: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with entered(client.program("p")):
            await value(client.completions.create(model="m", prompt="hi"))
            await items(await value(client.completions.create(model="m", prompt="hi", stream=True)))
            await value(client.responses.create(model="m", input="hi", tools=[{"type": "function", "name": "grep"}]))
            await items(await value(client.responses.create(model="m", input="hi", stream=True)))
            (await value(raw.create(**hi))).parse()
            async with entered(streaming.create(**hi)) as response:
                await value(response.read())
            async with entered(streaming.create(**hi, stream=True, **usage)) as response:
                await items(response.iter_lines())
            async with entered(streaming.create(**hi, stream=True, **usage)) as response:
                await items(await value(response.parse()))
            await items((await value(raw.create(**hi, stream=True, **usage))).parse())

    asyncio.run(run())
    records = records_of(tmp_path)
    assert [(r.output_tokens, r.error) for r in records] == [(7, None)] * 9
    assert [r.first_token_s is not None for r in records] == [False, True, False, True, False, False, True, True, True]
    turns = trace_of(tmp_path)["p"].turns
    asked = [[(call.name, call.duration_s) for call in turn.tool_calls] for turn in turns]
    assert asked == [[], [], [("grep", None)], *[[]] * 6]  # asked for, not measured
    assert turns[2].gap_overhead_s > 0


def test_failures_are_recorded_and_not_in_the_trace(client: OpenAI, server: FakeServer, tmp_path: Path) -> None:
    with client.program("p") as p:
        ask(client)
        ran(p, "pytest")
        server.plan.append(Planned(500))
        with pytest.raises(openai.InternalServerError):
            ask(client)
        server.plan.append(Planned(200, tear=True))
        with pytest.raises(Exception, match=r"."):
            list(ask(client, stream=True))
        with ask(client, stream=True) as stream:
            next(stream)
        stream = ask(client, stream=True)
    list(stream)  # after the program closed
    errors = [record.error for record in records_of(tmp_path)]
    assert errors[2]
    assert [*errors[:2], *errors[3:]] == [None, "InternalServerError 500", "closed before its end", None]
    turns = trace_of(tmp_path)["p"].turns
    assert [[call.name for call in turn.tool_calls] for turn in turns] == [["pytest"], []]


def test_a_reply_that_ends_after_the_end_of_its_program_is_not_in_the_trace(client: OpenAI, tmp_path: Path) -> None:
    """As when the process ends while a stream is read."""
    with client.program("p") as p:
        ask(client)
        stream = ask(client, stream=True)
        p._state.cut()
        list(stream)
    assert (turns_of(tmp_path), len(records_of(tmp_path))) == ({"p": 1}, 2)


def test_rewritten_history(client: OpenAI, tmp_path: Path) -> None:
    """An agent that cuts its history: the kept part is told from its messages, the sum is the server's count."""
    long, more, short = ([{"role": "user", "content": text}] for text in ("x" * 400, "y" * 400, "s"))
    with client.program("p"):
        for messages in ([*long, *more], [*long, *more, *short], [*long, *short]):
            ask(client, messages=messages)
    program, records = trace_of(tmp_path)["p"], records_of(tmp_path)
    assert program.prompt_tokens() == [record.prompt_tokens for record in records]
    assert [turn.kept_tokens is None for turn in program.turns] == [True, True, False]
    assert (program.turns[2].kept_tokens or 0) / records[1].prompt_tokens == pytest.approx(400 / 801, abs=0.01)


def test_what_is_kept_of_the_text(server: FakeServer, tmp_path: Path) -> None:
    for content, size in (("none", 0), ("digest", 8), ("full", 8)):
        recorder = Recorder(tmp_path / content, content, tool_key=lambda name, arguments: f"{name}:{len(arguments)}")  # type: ignore[arg-type]
        agent(OpenAI(base_url=server.url, record=recorder), "p")
        assert [record.tools for record in records_of(tmp_path / content)] == [
            (f"grep:{size}",),
            (f"pytest:{size}",),
            (),
        ]
    none, digest, full = (trace_of(tmp_path / content)["p"].turns for content in ("none", "digest", "full"))
    assert "{" not in str(none)
    assert [call.digest is None for turn in none for call in turn.tool_calls] == [True, True]
    (kept,) = {call.digest for turn in digest for call in turn.tool_calls}  # equal arguments
    assert len(kept or "") == 16
    assert [call.command for turn in full for call in turn.tool_calls] == ['{"x": 1}'] * 2
    assert full[-1].text == "fine"
    for file in (*(tmp_path / "none").glob("*.jsonl"), *(tmp_path / "digest").glob("*.jsonl")):
        assert "fine" not in file.read_text()
        assert "please" not in file.read_text()


def test_a_recorder_that_is_closed(server: FakeServer, tmp_path: Path) -> None:
    """Open programs are complete, the files are free, and the agent goes on unrecorded."""
    with Recorder(tmp_path) as recorder:
        client = OpenAI(base_url=server.url, record=recorder)
        p = client.program("p").__enter__()
        ask(client)
    opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not any(tmp_path in file.parents for file in opened)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(client)
        p.__exit__()
        recorder.close()
    assert len(server.turns) == 2
    assert turns_of(tmp_path) == {"p": 1}


# -------------------------------------------------------------------------- programs, files, threads


def test_programs_of_a_record(client: OpenAI, server: FakeServer, tmp_path: Path) -> None:
    """One id used twice, a sub-agent, a conversation outside any program."""
    for _ in range(3):
        with client.program("same"):
            ask(client)
    with client.program("main") as p:
        with p.child("helper"):
            ask(client)
        ask(client)
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        ask(client, messages=messages)
        messages += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "go on"}]
    client.close()
    traced = trace_of(tmp_path)
    own = str(server.ids[-1])
    assert turns_of(tmp_path) == {"same": 1, "same#2": 1, "same#3": 1, "main": 1, "helper": 1, own: 3}
    assert {name for name, program in traced.items() if program.parent_id == "main"} == {"helper"}
    assert server.ids[:3] == ["same"] * 3


def test_a_sub_agent_s_record_says_which_turn_started_it(client: OpenAI, tmp_path: Path) -> None:
    """Also if its parent goes on before its first answer has ended, and if its parent is the second one of its id."""
    for _ in range(2):
        with client.program("main") as p:
            with p.child("first"):
                ask(client)
            ask(client)
            ask(client)
            parent = contextvars.copy_context()
            with p.tool("delegate"), p.child("helper"):
                stream = ask(client, stream=True, stream_options={"include_usage": True})
                parent.run(ask, client)
                list(stream)
    client.close()
    traced = trace_of(tmp_path)
    for end in ("", "#2"):
        first, helper, main = (traced[f"{name}{end}"] for name in ("first", "helper", "main"))
        assert (first.parent_turn, len(main.turns)) == (None, 3)
        assert (helper.parent_id, helper.parent_turn) == (f"main{end}", 1)
        assert 0 < helper.parent_gap_s <= main.turns[1].gap_s


def test_a_forked_sub_agent_does_not_wait_for_its_parent_s_threads(server: FakeServer, tmp_path: Path) -> None:
    """A thread of the parent's process may have been writing the parent's record while the process was forked."""
    recorder = Recorder(tmp_path)
    client = OpenAI(base_url=server.url, record=recorder, max_retries=0)
    with client.program("main") as p:
        ask(client)
        ledger = recorder.by_program["main"]

        def helper() -> None:
            with p.child("helper"):
                ask(client)

        with ledger._lock:
            forked = multiprocessing.get_context("fork").Process(target=helper, daemon=True)
            forked.start()
        forked.join(20.0)
        assert forked.exitcode == 0
    helpers = trace_of(tmp_path)["helper"]
    assert (helpers.parent_id, helpers.parent_turn) == ("main", None)


def test_metadata_is_recorded_and_not_sent(vllm: FakeServer, tmp_path: Path) -> None:
    made: Any = {"base_url": vllm.url, "dialect": "vllm", "record": tmp_path}
    client, there = OpenAI(**made), AsyncOpenAI(**made)
    noted: Any = {"user": "Zo\u00eb\u2028", "try": 2, "heat": 0.5}
    helper = {**noted, "full": "x" * 512}
    client.program("named", metadata=noted)(lambda: ask(client))()
    with client.program("main", metadata={}) as p:
        ask(client)
        with p.child("helper", metadata=helper):
            ask(client)
    with there.resume(client.program("handed", metadata=noted).handoff()) as p:
        asyncio.run(ask(there))
    found = {name.partition("-")[0]: program.metadata for name, program in trace_of(tmp_path).items()}
    assert found == {"named": noted, "main": None, "helper": helper, "handed": noted}
    assert not [seen for seen in vllm.seen if "heat" in f"{seen.headers} {json.dumps(seen.body)}"]


def _worker(url: str, path: str, names: list[str]) -> None:
    client = OpenAI(base_url=url, api_key="k", record=path)
    for name in names:
        agent(client, name)


def test_processes(server: FakeServer, tmp_path: Path) -> None:
    """Processes that do not know of each other use one id."""
    context = multiprocessing.get_context("fork")
    jobs = [(server.url, str(tmp_path), ["shared", "shared", f"own {number}"]) for number in range(3)]
    processes = [context.Process(target=_worker, args=job) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    expected = {"shared"} | {f"shared#{n}" for n in range(2, 7)} | {f"own {n}" for n in range(3)}
    assert turns_of(tmp_path) == dict.fromkeys(expected, 3)


def test_the_clock_starts_with_the_directory(server: FakeServer, tmp_path: Path) -> None:
    """A second process's times go on where the first one's were, by the wall clock."""
    for name, wall_s in (("a", 5000.0), ("b", 8600.0)):
        recorder = Recorder(tmp_path, clock=lambda: 1000.0, wall=lambda now_s=wall_s: now_s)  # type: ignore[misc]
        client, ticks = OpenAI(base_url=server.url, record=recorder), iter(range(1000, 2000))
        client._continuum.clock = lambda ticks=ticks: float(next(ticks))  # type: ignore[attr-defined,misc]
        with client.program(name):
            ask(client)
    assert [(record.sent_s, record.finish_s) for record in records_of(tmp_path)] == [(0, 1), (3600, 3601)]
    assert json.loads((tmp_path / "trace.jsonl").read_text().splitlines()[0])["started_s"] == 5000


# ------------------------------------------------------------------------------------- crash, damage


def _killed(url: str, path: str) -> None:
    client, kept = OpenAI(base_url=url, record=path), []
    for name, turns in (("whole", 2), ("cut", 3), ("short", 1)):
        p = client.program(name)
        with p if name == "whole" else p.active():
            for _ in range(turns):
                ask(client)
                ran(p, "pytest")
        kept.append(p)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process(server: FakeServer, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(server.url, str(tmp_path)))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    records, traced = records_of(tmp_path), trace_of(tmp_path)
    assert turns_of(tmp_path) == {"whole": 2, "cut": 3, "short": 1}
    for name, program in traced.items():
        assert program.prompt_tokens() == [r.prompt_tokens for r in records if r.program_id == name]
    # measured; the tools after the last turn are unknown, and the reply called none
    tools = {
        name: [call.duration_s is None for call in program.turns[-1].tool_calls] for name, program in traced.items()
    }
    assert tools == {"whole": [False], "cut": [], "short": []}
    for file, torn in (("trace.jsonl", '{"kind":"turn","program_id":"cu'), ("turns.jsonl", '{"program_id":"cut","tu')):
        with (tmp_path / file).open("a") as out:
            out.write(torn)
    agent(OpenAI(base_url=server.url, record=tmp_path), "cut")  # the agent is started again
    assert turns_of(tmp_path) == {"whole": 2, "cut": 3, "short": 1, "cut#2": 3}
    assert len(records_of(tmp_path)) == len(records) + 3 == 9


def test_lines_are_whole_whoever_dies(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    first = SharedLines(path, b"head\n")
    first.append(b"one\n")
    with path.open("ab") as torn:
        torn.write(b"x" * 200_000)  # longer than one step back
    SharedLines(path, b"head\n").append(b"two\n")
    first.append(b"three\n")
    assert path.read_bytes() == b"head\none\ntwo\nthree\n"


def test_who_appends_waits_for_who_holds_the_file(tmp_path: Path) -> None:
    """The lock is of the open file, so two of them in one process are as two processes."""
    path = tmp_path / "lines"
    second = threading.Thread(target=lambda: SharedLines(path).append(b"second\n"))
    held = SharedLines(path)
    with held:
        second.start()
        second.join(0.3)
        assert second.is_alive()
        held.write(b"first\n")
    second.join(300)
    assert path.read_bytes() == b"first\nsecond\n"


def test_a_full_disk(client: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write

    def write(fd: int, data: bytes) -> int:
        written(fd, data[:10])
        raise OSError(28, "No space left on device")

    with client.program("p"):
        ask(client)
        monkeypatch.setattr(os, "write", write)
        with pytest.warns(ContinuumWarning, match="No space left"):
            ask(client)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(client)
    assert len(records_of(tmp_path)) == 1
    assert (tmp_path / "turns.jsonl").read_bytes().endswith(b"\n")


@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_an_unwritable_path(server: FakeServer, tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.warns(ContinuumWarning, match="the agent goes on"):
        client = OpenAI(base_url=server.url, record=tmp_path / place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent(client, "p")
        agent(OpenAI(base_url=server.url, record=tmp_path / place), "p", stream=True)
    assert len(server.turns) == 6


def size_of(kept: object) -> int:
    """Return the bytes of an object and of all objects of ours, and containers, to which it leads."""
    seen: dict[int, object] = {}
    left = [kept]
    while left:
        each = left.pop()
        ours = type(each).__module__.startswith("continuum_") or isinstance(each, CONTAINERS)
        if ours and id(each) not in seen:
            seen[id(each)] = each
            left += gc.get_referents(each)
    return sum(map(sys.getsizeof, seen.values()))


CONTAINERS = (dict, list, set, frozenset, tuple, deque, str, bytes, int, float)


def test_memory_is_bounded(client: OpenAI, tmp_path: Path) -> None:
    """What a program and its record keep does not grow with its turns. Of the tools between two turns, 256 are kept."""
    sizes = []
    with client.program("p") as p:
        for turns in (4, 40):
            for _ in range(turns):
                ask(client)
                ran(p, *["t"] * 400)
            sizes.append(size_of(p._state))
    assert sizes[1] - sizes[0] < 36 * 8  # less than a pointer for each turn
    assert sizes[0] - size_of(p._state) > 256 * sys.getsizeof(ToolRun("t", 0.0, 1.0))  # what is kept was seen
    assert p._state.ledger._last is None
    assert [len(turn.tool_calls) for turn in trace_of(tmp_path)["p"].turns] == [256] * 44


@pytest.mark.parametrize(("choices", "carried", "new"), [(1, 12, 3), (2, 6, 9), (3, 5, 10)])
def test_reasoning_is_that_of_all_choices_together(choices: int, carried: int, new: int) -> None:
    """20 tokens, 8 of them reasoning; the next prompt has 15 more. A choice of three has 7 tokens, 2 of reasoning."""
    reply = Reply(
        prompt_tokens=100, output_tokens=20, reasoning_tokens=8, reasons=dict.fromkeys(range(choices), "stop")
    )
    joined = join(EndedCall(0.0, 1.0, reply), EndedCall(2.0, 3.0, Reply(prompt_tokens=115)))
    assert (joined.carried_tokens, joined.new_input_tokens) == (carried, new)
