"""Runs tasks on this machine, each in its own process. A fork server imports vLLM once and starts the processes.

The first task starts after 7.4 s (on Ray 2.60 after 16.4 s); all processes take about 570 MiB (on Ray 1,830). Each was
measured once, on two cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import FrameType

PRELOAD = "continuum_server.virtual.preload"


@dataclass(frozen=True, slots=True)
class Report:
    """A message about a cell from the cell's process."""

    cell: str
    programs_done: int = 0
    programs_total: int = 0
    state: str = "running"
    """loading, running, done or failed."""
    error: str = ""
    in_flight: int | None = None
    """Programs that have arrived and not ended; None: not known."""
    programs_failed: int = 0


Listener = Callable[[Report], None]


Play = Callable[[Listener], None]
"""One run, which is pickled and sent to its process. It reports its progress and, at its end, that it is done or
failed."""
Live = dict[Connection, tuple[str, BaseProcess]]
"""The name and the process of each running task. The key is the connection on which the task reports."""


def play_here(tasks: Mapping[str, Play], jobs: int, on_report: Listener) -> bool:
    """Run the tasks, whose names are the keys, at most ``jobs`` at once. Returns whether Ctrl-C stopped any."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    pending, live, interrupted = list(tasks.items()), Live(), False
    with _ctrl_c() as pressed:
        try:
            _load_engine(context, pressed)
            while (pending or live) and not interrupted:
                while pending and len(live) < jobs:
                    name, play = pending.pop(0)
                    _start(context, name, play, live)
                    on_report(Report(name, state="loading"))
                for ready in wait([pressed.signalled, *live]):
                    if ready is pressed.signalled:
                        interrupted = True
                    else:
                        _listen(ready, live, on_report)  # type: ignore[arg-type]
        except KeyboardInterrupt:  # during the loading of the engine, or a second Ctrl-C
            interrupted = True
        finally:
            _kill(live)
    return interrupted


def _start(context: ForkServerContext, name: str, play: Play, live: Live) -> None:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_body, args=(play, sender), daemon=True)
    process.start()
    sender.close()
    live[receiver] = (name, process)


def _kill(live: Live) -> None:
    for _, process in live.values():
        process.kill()
    for receiver, (_, process) in live.items():
        process.join()
        receiver.close()


@dataclass(slots=True)
class _Press:
    """The state of Ctrl-C while tasks run."""

    signalled: Connection
    """Becomes readable when Ctrl-C is pressed."""
    raises: bool = False
    """Ctrl-C raises KeyboardInterrupt."""


@contextmanager
def _ctrl_c() -> Iterator[_Press]:
    """Signal Ctrl-C through a connection. A second Ctrl-C raises KeyboardInterrupt, in case the process hangs.

    An exception could be raised inside code that ignores it, or leave the fork server with half a request. Nothing
    changes in threads other than the main thread, and if Ctrl-C is ignored (as in a shell's background job).
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pressed = _Press(receiver)

    def on_press(number: int, frame: FrameType | None) -> None:
        if pressed.raises or receiver.poll():
            signal.default_int_handler(number, frame)
        sender.send(None)

    before = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_IGN)
    with receiver, sender:
        if is_ours:
            signal.signal(signal.SIGINT, on_press)
        try:
            yield pressed
        finally:
            if is_ours:
                signal.signal(signal.SIGINT, before)


def _load_engine(context: ForkServerContext, pressed: _Press) -> None:
    """Wait until the fork server has loaded the engine, which takes many seconds. Ctrl-C kills the fork server."""
    _start_forkserver()
    pressed.raises = True
    try:
        first = context.Process(daemon=True)  # does nothing
        first.start()  # returns when the fork server answers
        first.join()
    except KeyboardInterrupt:
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        raise
    finally:
        pressed.raises = False


def _start_forkserver() -> None:
    """Start the fork server with Ctrl-C blocked, so that it prints no traceback. This process stops it instead.

    The resource tracker is started first, because its start removes the block.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(ready: Connection, live: Live, on_report: Listener) -> None:
    name, process = live[ready]
    try:
        report: Report = ready.recv()
    except (EOFError, OSError):  # the process ended without a report, or while it sent one
        process.join()
        report = Report(name, state="failed", error=f"its process ended with exit code {process.exitcode}")
    if report.state in ("done", "failed"):
        process.join()
        ready.close()
        del live[ready]
    on_report(report)


def _body(play: Play, sender: Connection) -> None:
    """Run a task, as the body of its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    play(sender.send)
