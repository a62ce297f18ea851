"""A child process that ends, with all processes that it started, when this process ends, even by ``kill -9``.

A second process, a shell, watches. It reads from a pipe that closes when this process ends. The shell then sends
SIGTERM to the child, and at most ten seconds later SIGKILL to the child's process group. (Linux's parent-death signal
would reach only the child itself and not vLLM's engine core. It is also sent when the thread that started the child
ends.)
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

import psutil

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
"""The child sends its process id to the watcher before it executes the command, so the watcher can always kill it."""


class BoundProcess:
    """A command that runs in its own session, where Ctrl-C in the terminal does not reach it.

    Args:
        command: the command with its arguments.
        environment: all environment variables of the command.
        output: a file for stdout and stderr.

    Attributes:
        process: the running command.
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
        """``was killed by signal 9`` or ``ended by itself with status 1``; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"was killed by signal {-status}" if status < 0 else f"ended by itself with status {status}"

    def terminate(self) -> None:
        """Send SIGTERM to the command itself. Does not wait."""
        self.process.terminate()

    def kill_group(self) -> None:
        """Send SIGKILL to the command and its child processes. Does not wait, so a signal handler may call it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Call ``kill_group``, and wait for the end of all its processes. The command may have ended before.

        A process holds its files, sockets and ports until it has ended. vLLM's engine core, when it was forked, also
        holds the socket on which the server listened, and it ends later than the server where the machine is busy.
        """
        self.kill_group()
        self.process.wait()
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):  # the process has ended, or does not end within ten seconds
                if os.getpgid(process.pid) == self.process.pid:
                    process.wait(10.0)
        self._watcher.kill()
        self._watcher.wait()
        self._pipe.close()
