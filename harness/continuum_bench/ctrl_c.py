"""Ctrl-C ends every command with one line and exit code 130, in whatever moment it comes. Standard library only.

While a command works, Ctrl-C raises KeyboardInterrupt, and the command puts its files in order. Before and after that
nothing has to be put in order, and a KeyboardInterrupt in the middle of an import would be a traceback: the process
ends at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as of a shell's command."""


def leave_at_once() -> None:
    """Ctrl-C ends this process from now on, but for the time of ``raising``. Where it is ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def raising() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt inside the block, where ``leave_at_once`` has been called before."""
    ours = signal.getsignal(signal.SIGINT) is _leave
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)


def forget() -> None:
    """Call this where a KeyboardInterrupt was caught. CPython remembers one that passed through ``exec``, which
    dataclasses use, and would end the process by the signal in place of its exit code; new code makes it forget."""
    exec("")


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)
