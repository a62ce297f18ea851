"""Records: right numbers, whole lines, whatever happens to the process; and continuum-bench reads them as they are."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from continuum_bench.cli import app
from continuum_traces.run_dir import read_turns
from continuum_traces.schema import Program, TurnRecord
from fake_server import FakeServer, Planned
from typer.testing import CliRunner

from continuum_client import AsyncOpenAI, ContinuumWarning, OpenAI, Recorder, instrument, uninstrument
from continuum_client.appender import SharedLines
from continuum_client.recover import add_missing_turns
from continuum_client.recover import main as recover

jsonl = pytest.importorskip("continuum_traces.jsonl")

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOLS: Any = [{"type": "function", "function": {"name": "pytest", "parameters": {"type": "object", "properties": {}}}}]


def trace_of(path: Path) -> dict[str, Program]:
    assert jsonl.validate(path / "trace.jsonl") == []
    return {program.program_id: program for program in jsonl.read_programs(path / "trace.jsonl")}


def records_of(path: Path) -> list[TurnRecord]:
    return list(read_turns(path))


def agent(client: OpenAI, program_id: str, stream: bool = False) -> None:
    messages: list[Any] = [{"role": "user", "content": "fix it, please"}]
    with client.program(program_id) as p:
        while True:
            if stream:
                with client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
                    reply = events.get_final_completion().choices[0].message
            else:
                reply = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
            messages.append(reply.model_dump(exclude_none=True, exclude={"parsed"}))
            if not reply.tool_calls:
                return
            for call in reply.tool_calls:
                with p.tool("run " + call.function.name):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "some output " * 20})


# ------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("stream", [False, True])
def test_an_agents_run(server: FakeServer, tmp_path: Path, stream: bool) -> None:
    agent(OpenAI(base_url=server.url, record=tmp_path), "task-7", stream)
    usage = [server.answer("/chat/completions", seen.body)["usage"] for seen in server.turns]
    records = records_of(tmp_path)
    assert [(r.program_id, r.turn) for r in records] == [("task-7", 0), ("task-7", 1), ("task-7", 2)]
    assert [r.prompt_tokens for r in records] == [u["prompt_tokens"] for u in usage]
    assert [r.output_tokens for r in records] == [7, 7, 7]
    assert [r.cached_tokens for r in records] == [u["prompt_tokens_details"]["cached_tokens"] for u in usage]
    assert [r.tools for r in records] == [("grep",), ("pytest",), ()]
    for record, following in zip(records, [*records[1:], None], strict=True):
        assert record.finish_s is not None
        assert 0 <= record.sent_s <= record.finish_s <= (following.sent_s if following else record.finish_s)
        assert (record.first_token_s is not None) == stream
    program = trace_of(tmp_path)["task-7"]
    assert program.model == "m"
    assert program.prompt_tokens() == [u["prompt_tokens"] for u in usage]
    assert [turn.output_tokens for turn in program.turns] == [7, 7, 7]
    assert [[call.name for call in turn.tool_calls] for turn in program.turns] == [["run grep"], ["run pytest"], []]
    for turn, record, following in zip(program.turns, records, records[1:], strict=False):
        assert turn.gap_s == pytest.approx(following.sent_s - (record.finish_s or 0), abs=2e-5)
    assert all((turn.ttft_s is not None) == stream for turn in program.turns)
    assert all(turn.text is None for turn in program.turns)


def test_every_api(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        client.completions.create(model="m", prompt="hi")
        list(client.completions.create(model="m", prompt="hi", stream=True))
        client.responses.create(model="m", input="hi")
        list(client.responses.create(model="m", input="hi", stream=True))
        client.chat.completions.with_raw_response.create(**ASK).parse()
        with client.chat.completions.with_streaming_response.create(**ASK) as response:
            response.read()
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        with client.chat.completions.with_streaming_response.create(**ASK, **options) as response:
            list(response.iter_lines())
        with client.chat.completions.with_streaming_response.create(**ASK, **options) as response:
            list(response.parse())
        list(client.chat.completions.with_raw_response.create(**ASK, **options).parse())
    records = records_of(tmp_path)
    assert len(records) == 9
    assert {(r.output_tokens, r.error) for r in records} == {(7, None)}
    assert [r.first_token_s is not None for r in records] == [False, True, False, True, False, False, True, True, True]
    assert len(trace_of(tmp_path)["p"].turns) == 9


def test_async_and_tools_of_a_responses_reply(server: FakeServer, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=server.url, record=tmp_path) as client, client.program("p"):
            await client.responses.create(model="m", input="hi", tools=[{"type": "function", **TOOLS[0]["function"]}])
            async for _ in await client.chat.completions.create(**ASK, stream=True):
                pass
            async with client.chat.completions.with_streaming_response.create(**ASK) as response:
                await response.read()
            raw = await client.chat.completions.with_raw_response.create(**ASK)
            raw.parse()

    asyncio.run(run())
    records = records_of(tmp_path)
    assert [(r.output_tokens, r.tools) for r in records] == [(7, ("grep",)), (7, ()), (7, ()), (7, ())]
    first = trace_of(tmp_path)["p"].turns[0]
    assert [(call.name, call.duration_s) for call in first.tool_calls] == [("grep", None)]  # asked for, not measured
    assert first.gap_overhead_s > 0


def test_failures_are_recorded_and_not_in_the_trace(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path, max_retries=0)
    with client.program("p") as p:
        client.chat.completions.create(**ASK)
        with p.tool("pytest"):
            pass
        server.plan.append(Planned(500))
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(**ASK)
        server.plan.append(Planned(200, tear=True))
        with pytest.raises(Exception, match=r"."):
            list(client.chat.completions.create(**ASK, stream=True))
        with client.chat.completions.create(**ASK, stream=True) as stream:
            next(stream)
        client.chat.completions.create(**ASK)
    errors = [record.error for record in records_of(tmp_path)]
    assert errors[0] is None
    assert errors[1] == "InternalServerError 500"
    assert errors[2]
    assert errors[3] == "closed before its end"
    assert errors[4] is None
    program = trace_of(tmp_path)["p"]
    assert len(program.turns) == 2
    assert [call.name for call in program.turns[0].tool_calls] == ["pytest"]


def test_a_stream_read_after_the_program_closed(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        stream = client.chat.completions.create(**ASK, stream=True)
    list(stream)
    assert len(trace_of(tmp_path)["p"].turns) == 1


def test_a_server_without_usage(serve: Callable[..., FakeServer], tmp_path: Path) -> None:
    server = serve("openai", usage=False)
    client = OpenAI(base_url=server.url, record=tmp_path)
    with pytest.warns(ContinuumWarning, match="no token counts"), client.program("p"):
        client.chat.completions.create(**ASK)
    assert [record.output_tokens for record in records_of(tmp_path)] == [None]
    assert trace_of(tmp_path) == {}


def test_rewritten_history(server: FakeServer, tmp_path: Path) -> None:
    """An agent that cuts its history: the kept part is told from its messages, the sum is the server's count."""
    client = OpenAI(base_url=server.url, record=tmp_path)
    long = [{"role": "user", "content": "x" * 400}, {"role": "user", "content": "y" * 400}]
    with client.program("p"):
        for messages in (
            long,
            [*long, {"role": "user", "content": "z" * 40}],
            [long[0], {"role": "user", "content": "s"}],
        ):
            client.chat.completions.create(model="m", messages=messages)
    program, records = trace_of(tmp_path)["p"], records_of(tmp_path)
    assert program.prompt_tokens() == [record.prompt_tokens for record in records]
    assert [turn.kept_tokens is None for turn in program.turns] == [True, True, False]
    assert (program.turns[2].kept_tokens or 0) / (records[1].prompt_tokens or 1) == pytest.approx(400 / 840, abs=0.01)


def test_what_is_kept_of_the_text(server: FakeServer, tmp_path: Path) -> None:
    for content in ("none", "digest", "full"):
        agent(OpenAI(base_url=server.url, record=tmp_path / content, content=content), "p")  # type: ignore[arg-type]
    none, digest, full = (trace_of(tmp_path / content)["p"].turns for content in ("none", "digest", "full"))
    assert "{" not in str(none)
    assert [call.digest is None for turn in none for call in turn.tool_calls] == [True, True]
    digests = {call.digest for turn in digest for call in turn.tool_calls}
    assert len(digests) == 1  # equal arguments
    assert len(digests.pop() or "") == 16
    assert [call.command for turn in full for call in turn.tool_calls] == ['{"x": 1}'] * 2
    assert full[-1].text == "fine"
    for content in ("none", "digest"):
        for file in (tmp_path / content).glob("*.jsonl"):
            assert "fine" not in file.read_text()
            assert "please" not in file.read_text()
    with pytest.raises(ValueError, match="'some': there are none, digest, full"):
        Recorder(tmp_path / "x", content="some")  # type: ignore[arg-type]


def test_a_recorder_that_is_closed(server: FakeServer, tmp_path: Path) -> None:
    """Open programs are complete, the files are free, and the agent goes on unrecorded."""
    with Recorder(tmp_path) as recorder:
        client = OpenAI(base_url=server.url, record=recorder)
        p = client.program("p").__enter__()
        client.chat.completions.create(**ASK)
    opened = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not any(tmp_path in file.parents for file in opened)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.chat.completions.create(**ASK)
        p.__exit__()
        recorder.close()
    assert len(server.turns) == 2
    assert len(trace_of(tmp_path)["p"].turns) == 1
    assert recover([str(tmp_path)]) == 0  # no process writes to it


def test_tool_keys(server: FakeServer, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, content="full", tool_key=lambda name, arguments: f"{name}:{len(arguments)}")
    client = OpenAI(base_url=server.url, record=recorder)
    with client.program("p"):
        client.chat.completions.create(**ASK, tools=TOOLS)
    assert records_of(tmp_path)[0].tools == ("grep:8",)


# -------------------------------------------------------------------------- programs, files, threads


def test_one_id_used_twice(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    for _ in range(3):
        with client.program("same"):
            client.chat.completions.create(**ASK)
    assert list(trace_of(tmp_path)) == ["same", "same#2", "same#3"]
    assert {turn.program_id for turn in server.turns} == {"same"}


def test_sub_agents(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("main") as p:
        with p.child("helper"):
            client.chat.completions.create(**ASK)
        client.chat.completions.create(**ASK)
    assert {name: program.parent_id for name, program in trace_of(tmp_path).items()} == {"main": None, "helper": "main"}


def test_metadata_is_recorded_and_not_sent(serve: Callable[..., FakeServer], tmp_path: Path) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", record=tmp_path)
    noted: dict[str, str | int | float] = {"user": "Zo\u00eb\u2028", "try": 2, "heat": 0.5}

    @client.program("named", metadata=noted)
    def named() -> None:
        client.chat.completions.create(**ASK)

    named()
    there = AsyncOpenAI(base_url=server.url, dialect="vllm", record=tmp_path)
    with client.program("main", metadata={}) as p:
        client.chat.completions.create(**ASK)
        with p.child("helper", metadata={**noted, "full": "x" * 512}):
            client.chat.completions.create(**ASK)
    with there.resume(client.program("handed", metadata=noted).handoff()) as p:
        asyncio.run(there.chat.completions.create(**ASK))
    try:
        with instrument(record=tmp_path).program("plain", metadata=noted):
            openai.OpenAI(base_url=server.url, api_key="none").chat.completions.create(**ASK)
    finally:
        uninstrument()
    found = {name.partition("-")[0]: program.metadata for name, program in trace_of(tmp_path).items()}
    helper = {**noted, "full": "x" * 512}
    assert found == {"named": noted, "main": None, "helper": helper, "handed": noted, "plain": noted}
    sent = "".join(f"{seen.headers} {json.dumps(seen.body)}" for seen in server.seen)
    assert "heat" not in sent
    assert "Zo" not in sent


def test_calls_outside_a_program_are_recorded_too(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        client.chat.completions.create(model="m", messages=messages)
        messages += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "go on"}]
    client.close()
    (program,) = trace_of(tmp_path).values()
    assert len(program.turns) == 3


def test_a_directory_from_the_environment(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUUM_RECORD", str(tmp_path / "new" / "place"))
    agent(OpenAI(base_url=server.url), "p")
    assert len(trace_of(tmp_path / "new" / "place")["p"].turns) == 3
    manifest = json.loads((tmp_path / "new" / "place" / "manifest.json").read_text())
    assert manifest["versions"]["openai"] == openai.__version__


def test_threads_and_tasks(server: FakeServer, tmp_path: Path) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    threads = [threading.Thread(target=agent, args=(client, f"t{number}")) for number in range(8)]
    for thread in threads:
        thread.start()

    async def run() -> None:
        async with AsyncOpenAI(base_url=server.url, record=tmp_path) as other:

            async def one(number: int) -> None:
                async with other.program(f"a{number}"):
                    await asyncio.gather(*(other.chat.completions.create(**ASK) for _ in range(4)))

            await asyncio.gather(*(one(number) for number in range(20)))

    asyncio.run(run())
    for thread in threads:
        thread.join()
    turns = {name: len(program.turns) for name, program in trace_of(tmp_path).items()}
    assert turns == {f"t{n}": 3 for n in range(8)} | {f"a{n}": 4 for n in range(20)}
    assert len(records_of(tmp_path)) == 8 * 3 + 20 * 4


def _worker(url: str, path: str, names: list[str]) -> None:
    client = OpenAI(base_url=url, api_key="k", record=path)
    for name in names:
        agent(client, name)


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_processes(server: FakeServer, tmp_path: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    context = multiprocessing.get_context(method)
    names = ["shared", "shared"]  # processes that do not know of each other use one id
    jobs = [(server.url, str(tmp_path), [*names, f"own {number}"]) for number in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: what agents do, and what is tested
        processes = [context.Process(target=_worker, args=job) for job in jobs]
        for process in processes:
            process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    expected = {"shared"} | {f"shared#{n}" for n in range(2, 7)} | {f"own {n}" for n in range(3)}
    traced = trace_of(tmp_path)
    assert set(traced) == expected
    assert {len(program.turns) for program in traced.values()} == {3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_the_middle_of_a_program(server: FakeServer, tmp_path: Path) -> None:
    """Parent and child both go on with the program: two programs in the record, each turn once."""
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        client.chat.completions.create(**ASK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                OpenAI(base_url=server.url, record=tmp_path).chat.completions.create(**ASK)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        client.chat.completions.create(**ASK)
    assert len(trace_of(tmp_path)["p"].turns) == 2
    assert sorted(record.program_id for record in records_of(tmp_path)) == ["p", "p", f"p~{child}"]


# ------------------------------------------------------------------------------------- crash, damage

KILLED = """
import os, signal, sys
from continuum_client import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="k", record=sys.argv[2])
ask = dict(model="m", messages=[{"role": "user", "content": "hi"}])
for name in ("whole", "cut", "short"):
    p = client.program(name).__enter__()
    for turn in range({"whole": 2, "cut": 3, "short": 1}[name]):
        client.chat.completions.create(**ask)
        with p.tool("pytest"):
            pass
    if name == "whole":
        p.__exit__(None, None, None)
    else:
        p._leave()
    globals()[name] = p
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(server: FakeServer, path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, server.url, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_process(server: FakeServer, tmp_path: Path) -> None:
    killed(server, tmp_path)
    assert len(records_of(tmp_path)) == 6  # every turn that ended
    assert {name: len(program.turns) for name, program in trace_of(tmp_path).items()} == {"whole": 2, "cut": 2}
    command = ("traces", "validate", str(tmp_path / "trace.jsonl"))
    assert "has 2 more turns" in bench(*command, error=True)
    assert recover([str(tmp_path)]) == 0
    assert "more turn" not in bench(*command, error=True)
    traced = trace_of(tmp_path)
    assert {name: len(program.turns) for name, program in traced.items()} == {"whole": 2, "cut": 3, "short": 1}
    for program in traced.values():
        recorded = [r.prompt_tokens for r in records_of(tmp_path) if r.program_id == program.program_id]
        assert program.prompt_tokens() == recorded
    before = (tmp_path / "trace.jsonl").read_bytes()
    assert add_missing_turns(tmp_path) == 0
    assert (tmp_path / "trace.jsonl").read_bytes() == before


@pytest.mark.parametrize("line", [b"{}x", b'{"kind":"turn","program_id":"p"}', b"\xff", b"5", b'{"program_id":[]}'])
@pytest.mark.parametrize("name", ["trace.jsonl", "turns.jsonl"])
def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, line: bytes) -> None:
    for each in ("trace.jsonl", "turns.jsonl"):
        (tmp_path / each).write_bytes(line + b"\n" if each == name else b"")
    assert recover([str(tmp_path)]) == 2
    assert f"{tmp_path / name}:1: " in capsys.readouterr().err or line == b"\xff"


def test_opening_the_directory_completes_it(server: FakeServer, tmp_path: Path) -> None:
    killed(server, tmp_path)
    with (tmp_path / "trace.jsonl").open("a") as torn:
        torn.write('{"kind":"turn","program_id":"cu')
    with (tmp_path / "turns.jsonl").open("a") as torn:
        torn.write('{"program_id":"cut","tu')
    agent(OpenAI(base_url=server.url, record=tmp_path), "cut")  # the agent is started again
    turns = {name: len(program.turns) for name, program in trace_of(tmp_path).items()}
    assert turns == {"whole": 2, "cut": 3, "short": 1, "cut#2": 3}
    assert len(records_of(tmp_path)) == 9


def test_recover_does_not_disturb_who_writes(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p"):
        client.chat.completions.create(**ASK)
        assert recover([str(tmp_path)]) == 2
    assert "still writing" in capsys.readouterr().err
    assert recover([]) == 2
    assert recover([str(tmp_path / "nowhere")]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_process_that_just_ends(server: FakeServer, tmp_path: Path) -> None:
    """Programs nobody closed are completed when the interpreter exits."""
    script = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "")
    subprocess.run([sys.executable, "-c", script, server.url, str(tmp_path)], check=True)
    turns = {name: len(program.turns) for name, program in trace_of(tmp_path).items()}
    assert turns == {"whole": 2, "cut": 3, "short": 1}


def test_lines_are_whole_whoever_dies(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    first = SharedLines(path, b"head\n")
    first.append(b"one\n")
    with path.open("ab") as torn:
        torn.write(b"x" * 200_000)  # longer than one step back
    SharedLines(path, b"head\n").append(b"two\n")
    first.append(b"three\n")
    assert path.read_bytes() == b"head\none\ntwo\nthree\n"


HOLDS = """
import sys
from pathlib import Path
from continuum_client.appender import SharedLines
with SharedLines(Path(sys.argv[1])) as held:
    print("held", flush=True)
    sys.stdin.readline()
    held.write(b"first\\n")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks there")
def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        second = threading.Thread(target=lambda: SharedLines(path).append(b"second\n"))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        other.stdin.write("go on\n")
        other.stdin.flush()
        second.join(300)
    assert path.read_bytes() == b"first\nsecond\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = OpenAI(base_url=server.url, record=tmp_path)
    written = os.write
    full = False

    def write(fd: int, data: bytes) -> int:
        if full:
            written(fd, data[:10])
            raise OSError(28, "No space left on device")
        return written(fd, data)

    monkeypatch.setattr(os, "write", write)
    with client.program("p"):
        client.chat.completions.create(**ASK)
        full = True
        with pytest.warns(ContinuumWarning, match="No space left"):
            client.chat.completions.create(**ASK)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.chat.completions.create(**ASK)
    assert len(records_of(tmp_path)) == 1
    assert (tmp_path / "turns.jsonl").read_bytes().endswith(b"\n")


@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_an_unwritable_path(server: FakeServer, tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.warns(ContinuumWarning, match="nothing more is recorded, the agent goes on"):
        client = OpenAI(base_url=server.url, record=tmp_path / place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent(client, "p")
        agent(OpenAI(base_url=server.url, record=tmp_path / place), "p", stream=True)
    assert len(server.turns) == 6


def test_a_clock_and_a_wall_are_injected(server: FakeServer, tmp_path: Path) -> None:
    ticks = iter(range(1000, 2000))
    recorder = Recorder(tmp_path, clock=lambda: 1000.0, wall=lambda: 5000.0)
    client = OpenAI(base_url=server.url, record=recorder)
    client._continuum.clock = lambda: float(next(ticks))  # type: ignore[attr-defined]
    with client.program("p"):
        client.chat.completions.create(**ASK)
    (record,) = records_of(tmp_path)
    assert (record.sent_s, record.finish_s) == (0, 1)
    header = json.loads((tmp_path / "trace.jsonl").read_text().splitlines()[0])
    assert header["started_s"] == 5000


def test_memory_is_bounded(server: FakeServer, tmp_path: Path) -> None:
    """What a program keeps does not grow with its turns."""
    client = OpenAI(base_url=server.url, record=tmp_path)
    with client.program("p") as p:
        for _ in range(5):
            client.chat.completions.create(**ASK)
            for _ in range(400):
                with p.tool("t"):
                    pass
        assert len(p._runs) == 256
        assert p.ledger._last is not None
        assert {type(value).__name__ for value in vars(p.ledger).values()} <= {
            "Recorder", "lock", "int", "str", "float", "NoneType", "EndedCall", "Turn", "bool", "tuple", "Join",
        }  # fmt: skip
    assert p.ledger._last is None


# ----------------------------------------------------------------------------- the tools that read it


def bench(*arguments: str, error: bool = False) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stderr if error else done.stdout


@pytest.fixture
def recorded(server: FakeServer, tmp_path: Path) -> Path:
    pytest.importorskip("continuum_bench")
    pytest.importorskip("typer")
    client = OpenAI(base_url=server.url, record=tmp_path)
    for number in range(4):
        agent(client, f"p{number}", stream=number % 2 == 0)
    return tmp_path


def test_traces_commands_take_it_as_it_is(recorded: Path) -> None:
    trace = str(recorded / "trace.jsonl")
    bench("traces", "validate", trace)
    stats = json.loads(bench("traces", "stats", trace, "--json"))
    assert stats["programs"] == 4
    assert stats["turns_total"] == 12
    assert {tool["name"] for tool in stats["tools"]} == {"run grep", "run pytest"}
    assert "jct_mean_s" in bench("analyze", str(recorded), "--json")


@pytest.mark.slow
def test_replay_takes_it_as_it_is(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "replayed"
    bench(
        "replay",
        str(recorded / "trace.jsonl"),
        "--policy",
        "vllm",
        "--policy",
        "continuum",
        "--out",
        str(out),
        "--no-report",
    )
    assert list(out.rglob("scheduler_timestamps.jsonl"))
    shutil.rmtree(out)


def test_the_clock_starts_with_the_directory(server: FakeServer, tmp_path: Path) -> None:
    """A second process's times go on where the first one's were, by the wall clock."""
    agent(OpenAI(base_url=server.url, record=tmp_path), "a")
    later = Recorder(tmp_path, wall=lambda: time.time() + 3600)  # noqa: TID251
    agent(OpenAI(base_url=server.url, record=later), "b")
    arrivals = {name: program.arrival_s or 0 for name, program in trace_of(tmp_path).items()}
    assert arrivals["b"] - arrivals["a"] == pytest.approx(3600, abs=60)
