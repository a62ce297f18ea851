"""An agent's process as the harness sees it, whatever it prints."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from continuum_agents.protocol import Done, Event
from continuum_bench.agents import process as agent_process
from continuum_bench.agents.process import AgentDied, AgentProcess

READY = """printf '{"type":"ready","framework_version":"7"}\\n'"""
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


def test_what_imports_print_is_passed_over(tmp_path: Path) -> None:
    assert said(tmp_path, "echo 'Welcome to 1.0!'", "echo", READY, DONE) == [Done("Submitted")]


def test_a_torn_line_is_no_event(tmp_path: Path) -> None:
    assert said(tmp_path, READY, DONE, 'printf \'{"type":"tu\'') == [Done("Submitted")]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (("echo Welcome", "exit 3"), "ended with status 3"),
        ((DONE,), "sent 'done' before it was ready"),
        ((READY, "echo Welcome"), "not JSON: 'Welcome"),
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
