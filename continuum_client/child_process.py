"""Run a command in the foreground, with this process's terminal, as a shell would."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that cannot be started."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to all processes in its foreground, so that the command gets them too."""
_PR_SET_PDEATHSIG = 1


async def run_command(command: Sequence[str], environment: Mapping[str, str], ours: str) -> int:
    """Run a command, and pass this process's signals on to it. If this process is killed, the command gets SIGTERM.

    Args:
        command: the command and its arguments.
        environment: all environment variables of the command.
        ours: the name of our own command, for the message if ``command`` cannot be started.

    Returns:
        The exit status of the command, or 128 + N if signal N killed it.
    """
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment, preexec_fn=_end_with_parent())
    except OSError as error:
        sys.stderr.write(f"{ours}: {command[0]}: {error.strerror}\n")
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
