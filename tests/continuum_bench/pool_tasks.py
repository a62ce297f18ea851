"""Tasks for pools of processes; a module of its own, because the processes import it by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from continuum_bench.virtual.pool import Listener, Play, Report

LONG_S = 600.0
"""Longer than any test lasts: who sleeps so long is killed, or the test has failed."""


@dataclass(frozen=True)
class Ends:
    name: str

    def play(self, tell: Listener) -> None:
        tell(Report(self.name, state="done"))


@dataclass(frozen=True)
class Dies:
    name: str

    def play(self, tell: Listener) -> None:
        os._exit(3)


@dataclass(frozen=True)
class Lingers:
    """Done, but its process does not end."""

    name: str
    told: Path
    """A file that is there once it said so."""

    def play(self, tell: Listener) -> None:
        threading.Thread(target=time.sleep, args=(LONG_S,)).start()
        tell(Report(self.name, state="done"))
        self.told.touch()


@dataclass(frozen=True)
class Presses:
    """Ctrl-C for a process, so many times, half a second apart; then it is done, or sleeps."""

    name: str
    process: int
    times: int = 1
    after: Path | None = None
    """A file to wait for first."""
    ends: bool = False

    def play(self, tell: Listener) -> None:
        while self.after is not None and not self.after.exists():
            time.sleep(0.01)
        for _ in range(self.times):
            time.sleep(0.5)
            os.kill(self.process, signal.SIGINT)
        time.sleep(0.5 if self.ends else LONG_S)
        tell(Report(self.name, state="done"))


def plays(*tasks: Dies | Ends | Lingers | Presses) -> dict[str, Play]:
    return {task.name: task.play for task in tasks}
