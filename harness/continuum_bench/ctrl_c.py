"""Makes Ctrl-C end every command with one line and exit code 130. Standard library only.

While a command works, Ctrl-C raises KeyboardInterrupt, so that the command can complete its files. Before and after
that (for example during imports, where KeyboardInterrupt would be shown as a traceback) Ctrl-C ends the process at
once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells use it."""


def leave_at_once() -> None:
    """Make Ctrl-C end this process at once, except inside ``raising``. If Ctrl-C is ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def raising() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt inside the block, after ``leave_at_once`` was called."""
    is_ours = signal.getsignal(signal.SIGINT) is _leave
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _leave)


def forget() -> None:
    """Make CPython forget a KeyboardInterrupt that was caught, so that the process ends with its own exit code.

    CPython remembers a KeyboardInterrupt that passed through ``exec`` (which dataclasses use) and would end the process
    by the signal. Another ``exec`` clears that memory.
    """
    exec("")


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)
