"""Run a command, and end with it every process that it started: ``python keeper.py COMMAND ...``.

Linux makes this process the parent of all orphans below it (a "child subreaper", prctl(2)). So a process stays below
it in whatever session, process group and environment it runs. SIGTERM is passed on to the command. SIGUSR1 kills
everything at once. When the process that started this one ends, the command gets SIGTERM and ``GRACE_S`` seconds. The
exit status is the command's, or 127 if it cannot be started.

Standard library only, because Python runs this file alone, without its packages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

KILL = signal.SIGUSR1
"""Kills the command and all that it started."""
ORPHANED = signal.SIGUSR2
"""Linux sends it when the process that started this one ends."""
GRACE_S = 10
"""Seconds that the command then gets to clean up, such as to remove its container."""
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36
"""Options of prctl(2)."""
_HANDLED = (signal.SIGTERM, KILL, ORPHANED, signal.SIGALRM, signal.SIGCHLD)
_ROUNDS, _ROUND_S = 1000, 0.01
"""How often it is looked for processes that are left, and how long is waited in between."""


def kept(words: Sequence[str]) -> list[str]:
    """Return the command line that runs a command with this file."""
    return [sys.executable, "-I", "-S", __file__, *words]


def run(words: list[str]) -> int:
    """Run a command to its end, and kill all that it leaves. Returns its status as ``os.waitpid`` does.

    Raises:
        OSError: the command cannot be started.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    prctl(_PARENT_DEATH_SIGNAL, int(ORPHANED), 0, 0, 0)
    command = os.posix_spawnp(words[0], words, os.environ, setsigmask=())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # the command's input and output end with the command
        os.dup2(nothing, stream)
    status = None
    while status is None:
        received = signal.sigwait(_HANDLED)
        if received in (signal.SIGTERM, ORPHANED):
            os.kill(command, signal.SIGTERM)
        if received == ORPHANED:
            signal.alarm(GRACE_S)
        if received in (KILL, signal.SIGALRM):
            os.kill(command, signal.SIGKILL)
        status = _reaped().get(command)
    _kill_rest()
    return status


def _kill_rest() -> None:
    """Kill every process below this one, until none is left."""
    for _ in range(_ROUNDS):
        rest = below(os.getpid())
        if not rest:
            return
        for pid in rest:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait((signal.SIGCHLD,), _ROUND_S)
        _reaped()


def below(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                _state, parent, *_ = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(parent), []).append(int(folder.name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


def _reaped() -> dict[int, int]:
    """Take the exit statuses of the children that have ended."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    return ended


def _end_as(status: int) -> None:
    """End as the command did: with its exit status, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    try:
        status = run(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        sys.exit(127)
    _end_as(status)
