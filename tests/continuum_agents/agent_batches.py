"""Batches of agents under test: a run of the command, its files, its processes, and tasks for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from continuum_agents.environments import AgentEnvironmentError, NoPython, find_framework, is_current, set_up
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.programs.jsonl import validate
from continuum_traces.records import read_turns
from continuum_traces.schema import SchedulerEvent
from fake_server import FakeServer, hang_up
from live_server import Live, live
from waiting import until

SCENARIOS = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
MARK = "CONTINUUM_TEST_BATCH"


@dataclass
class Batch:
    """One run of ``continuum-bench agent FRAMEWORK``, under way or over."""

    out: Path
    process: subprocess.Popen[str]
    mark: str
    """In the environment of all that it starts."""

    def wait(self) -> tuple[int, str]:
        """Status and what it said."""
        said, _ = self.process.communicate(timeout=600)
        return self.process.returncode, said

    def ended(self, status: int = 0) -> str:
        """What it said. It ended with this status, its trace is whole, and nothing that it started is left."""
        found, said = self.wait()
        assert found == status, said
        assert self.processes() == []
        assert not (self.out / "trace.jsonl").exists() or list(validate(self.out / "trace.jsonl")) == []
        return said

    def ends(self) -> dict[str, tuple[str, bool | None]]:
        """Each program's status, and whether it passed its test."""
        return {name: (done["status"], done["passed"]) for name, done in self.programs().items()}

    def programs(self) -> dict[str, dict[str, Any]]:
        """programs.jsonl, by program."""
        lines = (self.out / "programs.jsonl").read_text().splitlines()
        return {program["program_id"]: program for program in map(json.loads, lines)}

    def predictions(self) -> dict[str, Any]:
        file = self.out / "preds.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def processes(self, word: str = "") -> list[str]:
        """Command lines of living processes that it, or what it started, has started."""
        return [line for _, line in self._processes(word)]

    def crash(self) -> None:
        """Kill all its processes, as the end of their machine would: none can see that another has ended."""
        self.process.send_signal(signal.SIGSTOP)
        found = [process for process, _ in self._processes("")]
        for act in (psutil.Process.suspend, psutil.Process.kill):  # all stand still before the first is killed
            for process in found:
                with suppress(psutil.NoSuchProcess):  # it has ended by itself
                    act(process)
        self.process.wait()

    def _processes(self, word: str) -> list[tuple[psutil.Process, str]]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if process.environ().get(MARK) == self.mark and word in line:
                    found.append((process, line))
        return found


def environment(name: str) -> None:
    """A framework's environment, made where it is not there; without one its tests are skipped, except in CI. No Python
    for it is a reason to skip there too."""
    framework = find_framework(name)
    try:
        if not is_current(framework):
            set_up(framework, print)
    except NoPython as error:
        pytest.skip(str(error))
    except AgentEnvironmentError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} cannot be installed here: {error}")


def write_lines(file: Path, lines: Iterable[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def task_file(folder: Path, *names: str, without_folder: tuple[str, ...] = ()) -> Path:
    """Tasks on copies of one scenario's code."""
    code = folder / "code"
    if not code.exists():
        shutil.copytree(SCENARIOS / "roman", code)
    lines = [{"instance_id": name, "problem_statement": "Mend it.", "folder": "code", "test": "true"} for name in names]
    lines += [{"instance_id": name, "problem_statement": "Mend it."} for name in without_folder]
    return write_lines(folder / "tasks.jsonl", lines)


def events_of(server: Live, program_id: str, turns: int) -> list[SchedulerEvent]:
    """The server's events of a program that has had so many turns and holds nothing; its recorder lags a little."""

    def kinds() -> list[str]:
        return [event.event for event in server.events(program_id)]

    until(lambda: kinds().count("finish") >= turns and kinds().count("pin") == kinds().count("unpin"))
    return server.events(program_id)


def finished(server: Live, program_id: str, turns: int) -> list[str | None]:
    """The tools that the server saw asked for at the end of each turn."""
    events = [event for event in events_of(server, program_id, turns) if event.event == "finish"]
    assert [event.turn for event in events] == list(range(turns))
    return [event.tool for event in events]


def unpinned(server: Live, program_id: str, turns: int) -> list[str | None]:
    """Why each hold of the program's KV ended."""
    return [event.reason for event in events_of(server, program_id, turns) if event.event == "unpin"]


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    """A reply that calls one function."""
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def script_of(file: Path) -> dict[str, Any]:
    """The replies in a file, by program."""
    return {line["program"]: line["replies"] for line in map(json.loads, file.read_text().splitlines())}


@contextmanager
def scripted(folder: Path, programs: dict[str, Any], policy: str = "static-ttl", **config: Any) -> Iterator[Live]:
    """A server with a modelled GPU, twenty times as fast, whose model says what the script holds by program."""
    lines = [{"program": name, "replies": said} for name, said in programs.items()]
    script = write_lines(folder / "script.jsonl", lines)
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script))
    with live(
        folder, policy=policy, **{"kv_blocks": 6000, "max_model_len": 32_000, "emulated": emulated, **config}
    ) as server:
        yield server


def slow_prefill(folder: Path) -> dict[str, Any]:
    """Options of ``continuum``, which has no samples yet: prefill is slow, so that tau = ln(T + C) outlasts tools."""
    profile = folder / "profile.json"
    profile.write_text(json.dumps({"prefill": {"a": 0.0, "b": 1000.0, "c": 0.0}}))
    return {"policy": "continuum", "profile": profile}


def second_turns(out: Path) -> set[str]:
    """Programs that have had two turns."""
    if not (out / "turns.jsonl").exists():
        return set()
    return {turn.program_id for turn in read_turns(out) if turn.turn == 1}


@contextmanager
def breaking_off(replies: list[dict[str, Any]], times: int = 4) -> Iterator[FakeServer]:
    """A server that gives these replies in order. After the first reply it breaks the connection of ``times`` calls."""

    async def answer(request: Any, number: int) -> Any:
        if 1 < number <= 1 + times:
            return hang_up(request)
        reply = replies[max(0, number - 1 - times)]
        calls = [
            {
                "id": f"call{number}",
                "type": "function",
                "function": {**call, "arguments": json.dumps(call["arguments"])},
            }
            for call in reply.get("tool_calls", ())
        ]
        whole = server.answer("/chat/completions", {"messages": [{"role": "user"}]})
        message = {"role": "assistant", "content": reply.get("text"), **({"tool_calls": calls} if calls else {})}
        whole["choices"][0] |= {"message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return web.json_response(whole)

    with FakeServer("plugin", handler=answer) as server:
        yield server


def tried_again(server: FakeServer, batch: Batch, name: str) -> None:
    """Check that the program ended well after three turns and four broken calls. Each call has the program's id, and
    the record has each answer once.

    Args:
        server: as ``breaking_off`` makes it.
        batch: one program against it.
        name: the program.
    """
    batch.ended()
    assert [seen.program_id for seen in server.asked] == [name] * 7
    answered = [(turn.program_id, turn.turn_id) for turn in read_turns(batch.out) if turn.error is None]
    assert len(answered) == len(set(answered)) == 3


def wait_for(condition: Callable[[], bool], batch: Batch | None) -> None:
    """Until it holds; fails where the batch ends first, or nothing comes of it for five minutes."""
    for _ in range(3000):
        if condition():
            return
        assert batch is None or batch.process.poll() is None, batch.wait()
        time.sleep(0.1)
    raise AssertionError("it never came to that")
