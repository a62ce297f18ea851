"""Plays a live run in one or several processes. Each plays a share of the programs; only the parent writes records.

All processes share one clock and one instant 0. With ``concurrency:N`` the lanes are divided among them too. A process
stops when its parent has ended.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import uvloop
from continuum_traces.playing.closed_loop import Lanes

from continuum_bench.errors import BenchError
from continuum_bench.live.driver import LoadDriver, Sink
from continuum_bench.live.load_settings import LivePlay, LoadCounters, LoadOptions

START_S = 0.2
"""Seconds between the moment when all processes are ready and instant 0."""
STOP_S = 10.0
"""Seconds that a stopping process has to report its unfinished turns."""
Share = tuple[Sequence[LivePlay], Lanes | None]
"""Programs in order of arrival, and a closed loop; None: they arrive at their arrival times."""


def play(load: LoadOptions, whole: Share, sink: Sink, counters: LoadCounters, processes: int) -> bool:
    """Play all programs.

    Args:
        load: the server and the settings.
        whole: the programs.
        sink: receives every record, in this process.
        counters: the counts are added to these.
        processes: number of processes. With 1, this process plays.

    Returns:
        False if Ctrl-C interrupted it.

    Raises:
        RunDirError: the sink cannot write.
        BenchError: a process died.
    """
    plays, lanes = whole
    if processes == 1:
        driver = LoadDriver(load, sink, _clock)
        driver.counters = counters
        try:
            _run(driver.run(plays, lanes, _clock()))
        except KeyboardInterrupt:
            return False
        return True
    dealt = _dealt(plays, processes)
    shares = [(each, _share(lanes, index, processes)) for index, each in enumerate(dealt)]
    return _Team(load, shares, sink, counters).play()


def _dealt(plays: Sequence[LivePlay], processes: int) -> list[list[LivePlay]]:
    """Return the programs of each process: root programs in turn, and sub-programs with their parents, which are before
    them."""
    shares: list[list[LivePlay]] = [[] for _ in range(processes)]
    share_of: dict[str, int] = {}
    roots = count()
    for play in plays:
        program = play.job.program
        share = next(roots) % processes if program.parent_turn is None else share_of[program.parent_id or ""]
        share_of[play.job.program_id] = share
        shares[share].append(play)
    return shares


def _clock() -> float:
    """Return the seconds of a clock that all processes of a machine share."""
    return time.perf_counter()  # noqa: TID251 - a process edge


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on uvloop, which needs a fifth less CPU than asyncio's loop and sends on time more often.

    The garbage collector is off meanwhile. With thousands of programs, one collection blocks the event loop for 100 ms,
    and requests leave no reference cycles (14,400 requests left none).
    """
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)
    finally:
        gc.enable()


class _Team:
    """The parent's side of the load processes."""

    def __init__(self, load: LoadOptions, shares: Sequence[Share], sink: Sink, counters: LoadCounters) -> None:
        self._sink, self._counters = sink, counters
        self._live: dict[Connection, BaseProcess] = {}
        context = multiprocessing.get_context("spawn")
        for share in shares:
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_member, args=(load, *share, child_end), daemon=True)
            process.start()
            child_end.close()
            self._live[parent_end] = process

    def play(self) -> bool:
        try:
            for connection in self._live:
                self._receive(connection)  # ready
            zero_s = _clock() + START_S
            for connection in self._live:
                connection.send(zero_s)
            self._listen(None)
            return True
        except KeyboardInterrupt:
            for connection in self._live:
                with suppress(OSError):
                    connection.send(None)
            self._listen(_clock() + STOP_S)
            return False
        finally:
            for process in self._live.values():
                process.kill()
                process.join()

    def _listen(self, until_s: float | None) -> None:
        while self._live:
            left_s = None if until_s is None else until_s - _clock()
            if left_s is not None and left_s <= 0:
                return
            for ready in wait(list(self._live), left_s):
                assert isinstance(ready, Connection)
                self._take(ready, self._receive(ready))

    def _receive(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except EOFError:
            process = self._live[connection]
            process.join()
            raise BenchError(f"a load process ended with exit code {process.exitcode}") from None

    def _take(self, connection: Connection, message: Any) -> None:
        if not isinstance(message, LoadCounters):
            return self._sink(message)
        self._counters.add(message)
        self._live.pop(connection).join()
        connection.close()


def _share(lanes: Lanes | None, index: int, number: int) -> Lanes | None:
    if lanes is None:
        return None
    return replace(lanes, number=lanes.number // number + (index < lanes.number % number))


def _member(load: LoadOptions, plays: Sequence[LivePlay], lanes: Lanes | None, connection: Connection) -> None:
    """Run as a child process. The parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = LoadDriver(load, connection.send, _clock)
    connection.send("ready")
    try:
        zero_s = connection.recv()
        with suppress(asyncio.CancelledError):
            _run(_run_until_message(driver, plays, lanes, zero_s, connection))
        connection.send(driver.counters)
    except (OSError, EOFError):
        return  # the parent has ended


async def _run_until_message(
    driver: LoadDriver, plays: Sequence[LivePlay], lanes: Lanes | None, zero_s: float, connection: Connection
) -> None:
    """Play until the end, or until the parent sends a message or ends."""
    run, loop = asyncio.ensure_future(driver.run(plays, lanes, zero_s)), asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(connection.fileno())
        run.cancel()

    loop.add_reader(connection.fileno(), stop)
    await run
