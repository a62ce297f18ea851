"""``Channel``, the agent's side of the protocol, over the process's stdin and stdout.

The framework and its tools cannot use these two streams: they get an empty stdin, and their stdout goes to stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from continuum_agents.protocol import Event, Start, read_start, to_line


class Channel:
    """Sends events to the harness, and receives the start. It is made once, before the framework can print."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.dup(1)
        self._in = os.fdopen(os.dup(0), "rb")
        os.dup2(2, 1)
        with open(os.devnull, "rb") as empty:  # noqa: PTH123 - a device
            os.dup2(empty.fileno(), 0)
        self._lock = threading.Lock()

    def say(self, event: Event) -> None:
        """Send an event. If the harness has closed the pipe, the event is dropped, because SIGTERM follows."""
        line = to_line(event).encode()
        with self._lock, suppress(OSError):
            while line:
                line = line[os.write(self._out, line) :]

    def wait_for_start(self) -> Start | None:
        """Wait for the start of a program. Return None if the harness closed stdin because it needs no further program.

        Raises:
            ProtocolError: the line is not a start.
        """
        line = self._in.readline()
        if not line.endswith(b"\n"):
            return None
        start = read_start(line.decode("utf-8"))
        threading.Thread(target=self._stop_with_harness, daemon=True).start()
        return start

    def _stop_with_harness(self) -> None:
        """Stop this process when stdin is closed, because the harness has ended."""
        with suppress(OSError):
            self._in.read()
        os.kill(os.getpid(), signal.SIGTERM)
