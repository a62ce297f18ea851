"""Run a command in the foreground, with this process's terminal, as a shell would, and count the calls of its model."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that cannot be started."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to all processes in its foreground, so that the command gets them too."""
_PR_SET_PDEATHSIG = 1


async def run_command(command: Sequence[str], environment: Mapping[str, str], own_name: str) -> int:
    """Run a command, and pass this process's signals on to it. If this process is killed, the command gets SIGTERM.

    Args:
        command: the command and its arguments.
        environment: all environment variables of the command.
        own_name: the name of our own command, for the message if ``command`` cannot be started.

    Returns:
        The exit status of the command, or 128 + N if signal N killed it.
    """
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment, preexec_fn=_end_with_parent())
    except OSError as error:
        sys.stderr.write(f"{own_name}: {command[0]}: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    pass_on_signals(process)
    status = await process.wait()
    return status if status >= 0 else 128 - status


def pass_on_signals(process: asyncio.subprocess.Process) -> None:
    """Send the signals that this process gets to the command, except those that the terminal sends to both."""
    loop = asyncio.get_running_loop()
    for number in (*PASSED_ON, *FROM_TERMINAL):
        loop.add_signal_handler(number, _send, process, number)


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    if process.returncode is None and not (number in FROM_TERMINAL and _in_foreground()):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)  # ``send_signal`` polls, which may take the exit status from asyncio


def _in_foreground() -> bool:
    """Whether the terminal sends its Ctrl-C to our process group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _end_with_parent() -> Callable[[], object] | None:
    """Return a function that the new process calls before it executes the command. Linux only."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Tally:
    """What is said about the calls of a command."""

    calls: int = 0
    tagged: int = 0
    programs: set[str] = field(default_factory=set)
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """None: no reply said how many of its prompt tokens were cached."""

    def add(self, program_id: str | None, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        self.calls += 1
        if program_id is None:
            return
        self.tagged += 1
        self.programs.add(program_id)
        self.prompt_tokens += prompt_tokens or 0
        if cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + cached_tokens

    def __str__(self) -> str:
        of = "" if self.tagged == self.calls else f" of {self.calls:,}"
        programs = f" in {_counted(len(self.programs), 'program')}" if self.programs else ""
        tagged = f"{self.tagged:,}{of} call{'' if self.calls == 1 else 's'}{programs} tagged"
        if self.cached_tokens is None:
            return tagged
        return f"{tagged}, {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens from the cache"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def read_tally(path: Path) -> Tally:
    """Read the file of ``CONTINUUM_TALLY``."""
    tally = Tally()
    for line in path.read_bytes().split(b"\n"):
        if line:
            tally.add(*json.loads(line))
    return tally
