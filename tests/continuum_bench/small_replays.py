"""Replays of small traces against the fake server, in this process and in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from continuum_bench.cli import app
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from fake_server import FakeServer, Handler
from typer.testing import CliRunner

runner = CliRunner()


def trace_of(folder: Path, programs: int = 3) -> Path:
    call = (ToolCall("ls", 0.05),)
    made = [
        Program(
            f"p{i}", (Turn(400, 20, tool_calls=call), Turn(100, 10, carried_tokens=4, tool_calls=call), Turn(50, 5))
        )
        for i in range(programs)
    ]
    path = folder / "small.jsonl.gz"
    write_programs(path, made)
    return path


def serving(handler: Handler, kind: str = "vllm") -> FakeServer:
    """``kind``: vllm, plugin (vLLM with Continuum's), or an ``owned_by``."""
    return FakeServer(kind, handler=handler)


def replay(trace: Path, url: str, out: Path, *more: object) -> Any:
    rate = [] if "--arrivals" in more and "concurrency" in str(more) else ["--jps", 20]
    arguments = ["replay", trace, "--base-url", url, *rate, "--out", out, "--no-report", *more]
    return runner.invoke(app, [str(argument) for argument in arguments])


def run_of(out: Path) -> Path:
    """The one run below an output directory."""
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def turns_of(out: Path) -> list[Any]:
    return list(read_turns(run_of(out)))


def replay_command(trace: Path, url: str, out: Path, *more: object) -> list[str]:
    """The same in a process of its own."""
    rate = [] if "--arrivals" in more and "concurrency" in str(more) else ["--jps", 20]
    arguments = ["replay", trace, "--base-url", url, *rate, "--out", out, "--no-report", *more]
    return [sys.executable, "-m", "continuum_bench", *map(str, arguments)]


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OPENAI_API_KEY": ""}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)
