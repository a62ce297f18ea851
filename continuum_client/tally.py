"""Count the calls of a command, for the line with which ``continuum-instrument`` and ``continuum-proxy`` end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from continuum_client.program import Program
from continuum_client.reply import Reply

TALLY_VARIABLE = "CONTINUUM_TALLY"
"""Names the file to which the processes under ``continuum-instrument`` add a line for each call."""

OnCall = Callable[[Program | None, Reply | None, float], None]
"""Receives each call that has ended: its program, its reply, and the instant of its end on the client's clock. Program
and reply are None for a call without tags."""


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
        said = f"{self.tagged:,}{of} call{'' if self.calls == 1 else 's'}{programs} tagged"
        if self.cached_tokens is None:
            return said
        return f"{said}, {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens from the cache"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def on_call_from_environment() -> OnCall | None:
    """Return a function that adds each call to the file in ``CONTINUUM_TALLY``; None if there is none."""
    path = os.environ.get(TALLY_VARIABLE)
    return None if not path else lambda program, reply, at_s: _append(path, program, reply)


def _append(path: str, program: Program | None, reply: Reply | None) -> None:
    counts = (None, None) if reply is None else (reply.prompt_tokens, reply.cached_tokens)
    with suppress(OSError):  # the command has ended, or this process sees other files
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, json.dumps([program and program.id, *counts]).encode() + b"\n")
        finally:
            os.close(file)


def read_tally(path: Path) -> Tally:
    """Read the file of ``CONTINUUM_TALLY``."""
    tally = Tally()
    for line in path.read_bytes().split(b"\n"):
        if line:
            tally.add(*json.loads(line))
    return tally
