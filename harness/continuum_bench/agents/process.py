"""The process of one agent: starts it, sends its program, reads its events, and ends it with all that it started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from continuum_agents.protocol import MARK_VARIABLE, Event, ProtocolError, Ready, Start, read_event, to_line

from continuum_bench.agents import keeper

LINE_BYTES = 64 * 2**20
GRACE_S = 10.0
"""Seconds that a stopped agent gets to kill its tool, end its program and write its records."""


class AgentDied(Exception):
    """An agent's process ended, or violated the protocol, before its program ended."""


class AgentProcess:
    """A running agent, made by ``spawn``. ``end`` must be called."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path) -> None:
        self._process = process
        """The keeper, whose child the agent is."""
        self._scratch = scratch

    @classmethod
    async def spawn(cls, python: Path, module: str, environment: Mapping[str, str], log: Path) -> AgentProcess:
        """Start a process. Its stderr is appended to ``log``.

        Raises:
            AgentDied: there is no such Python, or the system cannot start another process.
        """
        if shutil.which(python) is None:
            raise AgentDied(f"its process could not be started: {python} cannot be executed")
        scratch = Path(tempfile.mkdtemp(prefix="continuum-"))  # the paths of sockets must be short
        # -I ignores PYTHONPATH and the working directory; -P, for this process's own Python, only the latter
        flag = "-P" if str(python) == sys.executable else "-I"
        try:
            with log.open("ab") as stderr:
                process = await asyncio.create_subprocess_exec(
                    *keeper.kept([str(python), flag, "-m", module]),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    limit=LINE_BYTES,
                    env={**os.environ, **environment, MARK_VARIABLE: scratch.name, "TMUX_TMPDIR": str(scratch)},
                    start_new_session=True,  # Ctrl-C reaches only the harness, which then ends the programs
                )
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise AgentDied(f"its process could not be started: {error}") from error
            raise
        return cls(process, scratch)

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the process has loaded its framework.

        Raises:
            AgentDied: the process ended, or took too long to load.
        """
        try:
            event = await asyncio.wait_for(self._first_event(), timeout_s)
        except asyncio.TimeoutError as error:
            raise AgentDied(f"its framework was not loaded after {timeout_s:g} s") from error
        if event is None:
            raise await self.died()
        if not isinstance(event, Ready):
            raise AgentDied(f"it sent {event.kind!r} before it was ready")

    async def _first_event(self) -> Event | None:
        """Return the first event, and skip the lines that frameworks print while they are imported."""
        while line := await self._line():
            with suppress(ProtocolError):
                return read_event(line)
        return None

    async def begin(self, start: Start) -> None:
        """Send the process its program."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # the process died: ``events`` ends too
            self._process.stdin.write(to_line(start).encode())
            await self._process.stdin.drain()

    async def events(self) -> AsyncIterator[Event]:
        """Yield the process's events until its stdout ends.

        Raises:
            AgentDied: a line is no event.
        """
        while line := await self._line():
            try:
                yield read_event(line)
            except ProtocolError as error:
                raise AgentDied(str(error)) from error

    async def _line(self) -> str:
        """Return the next line; empty at the end of stdout, and for a line that is cut off there."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError as error:
            raise AgentDied(f"it wrote a line of more than {LINE_BYTES} bytes") from error
        return line.decode("utf-8", "replace") if line.endswith(b"\n") else ""

    async def died(self) -> AgentDied:
        """Return the error for a process whose stdout ended before its program did."""
        try:
            status = await asyncio.wait_for(self._process.wait(), GRACE_S)
        except asyncio.TimeoutError:
            return AgentDied("it closed its stdout and went on")
        if status < 0:
            return AgentDied(f"it was killed by signal {-status}")
        return AgentDied(f"the agent's process ended with status {status}")

    async def end(self, grace_s: float = GRACE_S) -> None:
        """Ask the process to stop if it still runs, then kill it and everything that it started, and wait for that."""
        try:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGTERM)  # ``send_signal`` may take its exit status from asyncio
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), grace_s)
        finally:
            self.kill()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)

    def kill(self) -> None:
        """Kill the process and everything that it started. Does not wait."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, keeper.KILL)
        shutil.rmtree(self._scratch, ignore_errors=True)
