"""An agent's process as the harness sees it, whatever it prints."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from continuum_agents.protocol import Done, Event
from continuum_bench.agents import process as agent_process
from continuum_bench.agents.keeper import below, kept
from continuum_bench.agents.process import AgentDied, AgentProcess
from waiting import until

from continuum_client import child_process

READY = """printf '{"type":"ready"}\\n'"""
DONE = """printf '{"type":"done","exit_status":"Submitted"}\\n'"""


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All temporary folders are gone in the end."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert not list(scratch.iterdir())


def said(tmp_path: Path, *commands: str) -> list[Event]:
    """The events of a process that runs these shell commands, after it is ready."""
    script = tmp_path / "agent"
    script.write_text("\n".join(("#!/bin/sh", *commands)))
    script.chmod(0o755)

    async def listen() -> list[Event]:
        process = await AgentProcess.spawn(script, "any", {}, tmp_path / "log")
        try:
            await process.wait_until_ready(60.0)
            return [event async for event in process.events()]
        finally:
            await process.end()

    return asyncio.run(listen())


ORPHAN = "echo $! > ORPHAN"
HIDDEN = {
    "an empty environment": f"env -i setsid sh -c 'setsid sleep 986 & {ORPHAN}'",
    "deaf to signals": f"""(trap '' TERM HUP INT QUIT; sleep 986 & {ORPHAN})""",
    "stopped": f"(sleep 986 & kill -STOP $!; {ORPHAN})",
    "without files": f"(setsid sleep 986 <&- >&- 2>&- & {ORPHAN})",
    "another name": f"(bash -c 'exec -a kworker/0:1 sleep 986' & {ORPHAN})",
    "it starts others for ever": f"(setsid sh -c 'while :; do sleep 0.01; done' & {ORPHAN})",
    "its parent has ended twice": f"setsid -f setsid -f sh -c 'sleep 986 & {ORPHAN}'",
}


@pytest.mark.parametrize(
    ("hidden", "ending"),
    [
        *((HIDDEN["an empty environment"], ending) for ending in ("exit 0", "kill -9 $$", "sleep 987")),
        *((hidden, "exit 0") for hidden in list(HIDDEN.values())[1:]),
    ],
)
def test_nothing_that_it_started_outlives_it(tmp_path: Path, hidden: str, ending: str) -> None:
    """Neither a session of its own nor an empty environment nor a parent that has ended hides a process."""
    hides = hidden.replace("ORPHAN", f"{tmp_path}/orphan")
    there = f"until [ -s {tmp_path}/orphan ]; do sleep 0.02; done"
    script = tmp_path / "agent"
    script.write_text("\n".join(("#!/bin/sh", READY, f"{{ {hides}; }} &", there, DONE, ending)))
    script.chmod(0o755)

    async def play() -> set[int]:
        before = below(os.getpid())  # such as multiprocessing's, of other tests
        process = await AgentProcess.spawn(script, "any", {}, tmp_path / "log")
        await process.wait_until_ready(60.0)
        assert await anext(process.events()) == Done("Submitted")
        await process.end(0.2)
        return set(below(os.getpid())) - set(before)

    assert asyncio.run(play()) == set()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "orphan").read_text()), 0)


def test_the_end_of_the_harness_is_the_end_of_all_that_it_started(tmp_path: Path) -> None:
    """Also by a signal that it cannot see."""
    words = kept(["sh", "-c", f"env -i setsid sleep 985 & echo $! > {tmp_path}/pid; sleep 985"])
    harness = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({words!r})"])
    until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    started = below(harness.pid)
    harness.kill()
    harness.wait()
    assert len(started) >= 3
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill $$", -15)])
def test_a_kept_command_ends_as_it_does_alone(command: str, status: int) -> None:
    done = subprocess.run(kept(["sh", "-c", f"{command}"]), input=b"", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")
    assert subprocess.run(kept(["cat"]), input=b"words", capture_output=True).stdout == b"words"


def test_what_imports_print_is_passed_over(tmp_path: Path) -> None:
    assert said(tmp_path, "echo 'Welcome to 1.0!'", "echo", READY, DONE) == [Done("Submitted")]


def test_a_torn_line_is_no_event(tmp_path: Path) -> None:
    assert said(tmp_path, READY, DONE, 'printf \'{"type":"tu\'') == [Done("Submitted")]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (("echo Welcome", "exit 3"), "ended with status 3"),
        ((DONE,), "sent 'done' before it was ready"),
        ((READY, "echo Welcome"), "not a message: 'Welcome"),
        ((READY, "head -c 70000 /dev/zero | tr '\\0' x", "echo"), "a line of more than 65536 bytes"),
    ],
)
def test_what_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: tuple[str, ...], message: str) -> None:
    monkeypatch.setattr(agent_process, "LINE_BYTES", 65536)
    with pytest.raises(AgentDied, match=message):
        said(tmp_path, *commands)


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(AgentDied, match="could not be started"):
        asyncio.run(AgentProcess.spawn(tmp_path / "none", "any", {}, tmp_path / "log"))


async def _end(process: asyncio.subprocess.Process, folder: Path) -> None:
    await AgentProcess(process, folder).end()


async def _pass_on(process: asyncio.subprocess.Process, folder: Path) -> None:
    child_process._send(process, signal.SIGTERM)


@pytest.mark.parametrize("send", [_end, _pass_on])
def test_a_signal_does_not_take_the_exit_status_from_asyncio(
    send: Callable[[asyncio.subprocess.Process, Path], Awaitable[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio logged "Unknown child process pid" and reported 255, if the process ended just before the signal."""
    signalled, waitpid = threading.Event(), os.waitpid

    def later(pid: int, options: int) -> tuple[int, int]:
        if threading.current_thread() is not threading.main_thread():
            assert signalled.wait(300)
        return waitpid(pid, options)

    async def run() -> int:
        process = await asyncio.create_subprocess_exec("true", start_new_session=True)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        asyncio.get_running_loop().call_soon(signalled.set)
        await send(process, tmp_path / "none")
        return await process.wait()

    monkeypatch.setattr(os, "waitpid", later)
    assert (asyncio.run(run()), caplog.records) == (0, [])
