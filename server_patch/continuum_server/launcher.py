"""Start, watch and stop a vLLM server with the plugin. ``continuum-bench serve``, sweeps and tests use this module.

There are three engines: ``gpu`` (vLLM as it is installed), ``emulated`` (no GPU; modelled step times, scripted answers)
and ``cpu`` (vLLM computes on the CPU, by default a tiny Llama with random weights). The server runs in its own process,
so this module does not import vLLM.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from continuum_traces.json_io import read_json
from continuum_traces.records.run_dir import EVENTS
from continuum_traces.wire.urls import address_of

from continuum_server.bound_process import BoundProcess
from continuum_server.defaults import SERVER_NAME
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.ports import answers, hold_port, listens
from continuum_server.preflight import check_machine
from continuum_server.record_file import check_writable, lock_of
from continuum_server.server_command import command_of, model_name, needs_key, scheme_of
from continuum_server.server_config import STOCK, ServerConfig, ServerError


class Server(BoundProcess):
    """A running server. As a context manager it waits until the server is healthy, and leaves no process behind.

    Args:
        config: the server's configuration.
        log: file for the server's output; None: this process's stderr.

    Raises:
        ServerError: the port is taken, the log or the statistics cannot be written, or this machine lacks what the
            engine needs (``preflight``).
        RunDirError: the record or the statistics cannot be written, or another server writes them.
        ServerError, PolicyError, StepTimesError, EmulatedError: see ``command_of``.
    """

    def __init__(self, config: ServerConfig, log: Path | None = None) -> None:
        self.config = config
        self.name = secrets.token_hex(4)
        self._log, self._stopping = log, False
        self._held = hold_port(config.host, config.port)
        self.port = int(self._held.getsockname()[1])
        self.url = address_of(config.host, self.port, scheme_of(config))
        try:
            _check_outputs(config)
            command, environment = command_of(config, self.port)
            check_machine(config)
            with _output(log) as output:
                super().__init__(command, {**os.environ, **environment, SERVER_NAME: self.name}, output)
        except BaseException:
            self._held.close()
            raise

    def wait_until_healthy(self, timeout_s: float = 600.0) -> None:
        """Wait until /health answers, and the answer comes from this process.

        Raises:
            ServerError: the process died, or ``timeout_s`` passed.
        """
        deadline_s = now_s() + timeout_s
        while not (answers(f"{self.url}/health") and listens(self.process.pid, self.port)):
            if self.ended:
                raise ServerError(f"the server {self.ended}{self._tail()}")
            if now_s() > deadline_s:
                raise ServerError(f"the server was not healthy after {timeout_s:g} s{self._tail()}")
            time.sleep(0.2)
        self._held.close()

    def wait(self, timeout_s: float) -> None:
        """Wait until the server has ended after ``terminate`` or ``kill``.

        Raises:
            ServerError: the server ended by itself. The message says how, and where the log is.
            subprocess.TimeoutExpired: the server still runs after ``timeout_s``.
        """
        self.process.wait(timeout_s)
        if not self._stopping:
            where = f"see {self._log}" if self._log is not None else "its log is above"
            raise ServerError(f"the server {self.ended}; {where}")

    @property
    def ended(self) -> str | None:
        ended = super().ended
        return f"{ended}, as vLLM does when its engine dies" if ended and self.process.returncode == 0 else ended

    def terminate(self) -> None:
        """Ask the server to finish its running requests and stop. Does not wait."""
        self._stopping = True
        super().terminate()

    def kill_group(self) -> None:
        """Send SIGKILL to all the server's processes. Does not wait, so a signal handler may call it."""
        self._stopping = True
        super().kill_group()

    def kill(self) -> None:
        """Kill the process and all processes that it started, and wait for its end."""
        super().kill()
        self._held.close()

    def stop(self) -> None:
        """Call ``terminate``, then ``kill`` if the server does not end in time."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.wait(self.config.drain_s + 30.0)
        self.kill()  # child processes may still run

    def __enter__(self) -> Server:
        try:
            self.wait_until_healthy()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _tail(self) -> str:
        if self._log is None:
            return "; its log is above"
        cause = cause_in(self._log.read_text(encoding="utf-8", errors="replace").splitlines())
        return f"{f': {cause}' if cause else ''}; log {self._log}"


_CAUSE = re.compile(r"^(?:[(].*\] )?(?:\S+[.]py: error: |(?=[\w.]*(?:Error|Exception): ))(?P<cause>\S.*)")
_DETAIL = re.compile(r"^ +(?P<cause>(?:Value|Assertion) error, .*?)(?: \[type=.*)?$")
"""What pydantic says of a value, in the lines below its error."""
_CONSEQUENCE = re.compile(r"See (root cause|stack trace)")


def cause_in(log: Sequence[str]) -> str | None:
    """Return the last error that these lines of vLLM's log show, which ended it; None: they show none."""
    lines = (_DETAIL.match(line) or _CAUSE.match(line) for line in reversed(log) if not _CONSEQUENCE.search(line))
    return next((line["cause"].strip() for line in lines if line), None)


def client_line(server_url: str, config: ServerConfig) -> str:
    """Return Python code that connects a client to the server. An API key is not printed."""
    key = "YOUR KEY" if needs_key(config) else "EMPTY"
    return f'OpenAI(base_url="{server_url}/v1", api_key="{key}")  # model="{model_name(config)}"'


def _check_outputs(config: ServerConfig) -> None:
    """Check the server's files and create their folders. The server itself would only log that it cannot write a file.

    Raises:
        ServerError: the statistics file contains something else.
        RunDirError: the record or the statistics cannot be read or written, or another server writes them.
    """
    if config.policy == STOCK:
        return
    if config.record is not None:
        check_writable(config.record / EVENTS)
    if config.statistics is not None:
        if config.statistics.is_dir():
            raise ServerError(f"--statistics {config.statistics}: is a folder; name a file")
        check_writable(lock_of(config.statistics))
        if config.statistics.exists():
            try:
                merge_statistics([read_json(config.statistics)])
            except ValueError as error:
                raise ServerError(f"{config.statistics}: {error}") from error


@contextmanager
def _output(log: Path | None) -> Iterator[IO[bytes] | int]:
    """Open a log, so that a process can be started with it. None: this process's stderr."""
    if log is None:
        yield sys.stderr.fileno()
        return
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    except OSError as error:
        raise ServerError(f"{log}: cannot write: {error.strerror}") from error
    with file:
        yield file


def now_s() -> float:
    """Return the time of a clock for timeouts."""
    return time.monotonic()  # noqa: TID251 - for timeouts, not for measurements
