"""The agent's end of the protocol: stdin and stdout taken away from the framework and its tools."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress

from continuum_agents.protocol import Event, Start, read_start, to_line


class Channel:
    """Says events and waits for the start. Made once, before anything can print.

    What the framework or a tool writes to stdout goes to stderr from here on, and their stdin is empty.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.dup(1)
        self._in = os.dup(0)
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
            os.dup2(nothing.fileno(), 0)
        self._lock = threading.Lock()

    def say(self, event: Event) -> None:
        """One event. Nobody listening is no error: the process is about to be told to stop."""
        line = to_line(event).encode()
        with self._lock, suppress(OSError):
            while line:
                line = line[os.write(self._out, line) :]

    def wait_for_start(self) -> Start | None:
        """The program to run; None where this process is not needed.

        Raises:
            ProtocolError: something else was said.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = os.read(self._in, 65536)
            if not piece:
                return None
            line += piece
        start = read_start(line.decode("utf-8"))
        threading.Thread(target=self._stop_with_harness, daemon=True).start()
        return start

    def _stop_with_harness(self) -> None:
        """A closed stdin means that the harness is gone."""
        with suppress(OSError):
            while os.read(self._in, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
