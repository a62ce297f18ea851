"""A process that ends with the one that started it, however that one ends, together with all the processes it started.

A shell watches: it reads from a pipe that only this process can write to. The pipe ends when this process does, also by
``kill -9``; the shell then sends SIGTERM, and ten seconds later at most SIGKILL to the whole process group. (Linux's
parent-death signal reaches the direct child only, so that vLLM's engine core would stay, and it is sent when the thread
that started the child ends.)
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_WATCH = """
read -r leader || exit 0
while read -r line; do :; done
kill -s TERM "$leader"
left=100
while [ "$left" -gt 0 ] && kill -0 "$leader"; do
  left=$((left - 1))
  sleep 0.1
done
kill -s KILL -- "-$leader"
"""

_TELL_AND_RUN = 'echo "$$" >&0; exec "$@" </dev/null'
"""The process itself tells the watcher its id, before it becomes what is to run: it is known at every moment."""


class BoundProcess:
    """A command in a session of its own, so that signals reach it through this object only.

    Args:
        command: what to run.
        environment: all of it.
        output: takes stdout and stderr; anything ``subprocess`` does.

    Attributes:
        process: the command's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int) -> None:
        reader, writer = os.pipe()
        self._pipe = os.fdopen(writer, "wb", buffering=0)
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(reader)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _TELL_AND_RUN, "sh", *command],
            env=environment,
            stdin=self._pipe,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def ended(self) -> str | None:
        """How it ended, as the rest of a sentence; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"was killed by signal {-status}" if status < 0 else f"ended by itself with status {status}"

    def terminate(self) -> None:
        """SIGTERM to the command itself; does not wait."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)

    def kill_group(self) -> None:
        """SIGKILL to the command and all it started; does not wait, so that a signal handler may call it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """``kill_group``, and wait for the command's end; whether or not it ended before."""
        self.kill_group()
        self.process.wait()
        self._watcher.kill()
        self._watcher.wait()
        self._pipe.close()
