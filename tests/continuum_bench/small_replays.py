"""Replays of small traces against the fake server, in this process and in one of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_cli import bench
from continuum_traces.json_io import read_json
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from fake_server import FakeServer, Handler


def trace_of(folder: Path, programs: int = 3, name: str = "p") -> Path:
    call = (ToolCall("ls", 0.05),)
    turns = (Turn(400, 20, tool_calls=call), Turn(100, 10, carried_tokens=4, tool_calls=call), Turn(50, 5))
    path = folder / "small.jsonl.gz"
    write_programs(path, [Program(f"{name}{i}", turns) for i in range(programs)])
    return path


def _arguments(trace: Path, url: str, out: Path, *more: object) -> list[str]:
    rate = [] if "--arrivals" in more and "concurrency" in str(more) else ["--jps", 20]
    return [str(word) for word in ("replay", trace, "--base-url", url, *rate, "--out", out, "--no-report", *more)]


def replay(*arguments: Any) -> Any:
    return bench(*_arguments(*arguments))


@dataclass(frozen=True)
class Replayed:
    """A replay that has ended, what it said, and what its server saw."""

    server: FakeServer
    said: str
    printed: str
    out: Path

    @property
    def run(self) -> Path:
        return run_of(self.out)

    @property
    def turns(self) -> list[Any]:
        return turns_of(self.out)

    @property
    def summary(self) -> dict[str, Any]:
        return dict(read_json(self.out / "summary.json"))


def replayed(
    folder: Path, handler: Handler, *more: object, programs: int = 1, kind: str = "vllm", code: int = 0
) -> Replayed:
    """Replay so many programs against a server of its own; the command ends with this code."""
    with FakeServer(kind, handler=handler) as server:
        done = replay(trace_of(folder, programs), server.url, folder / "out", *more)
    assert done.exit_code == code, done.output
    return Replayed(server, done.stderr, done.stdout, folder / "out")


def run_of(out: Path) -> Path:
    """The one run below an output directory."""
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def turns_of(out: Path) -> list[Any]:
    return list(read_turns(run_of(out)))


def started(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """``replay`` in a process of its own."""
    command = [sys.executable, "-m", "continuum_bench", *_arguments(*arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def analyzed(out: Path) -> dict[str, Any]:
    (found,) = json.loads(bench("analyze", out, "--json").stdout).values()
    return dict(found)
