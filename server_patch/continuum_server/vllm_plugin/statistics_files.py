"""Files of tool statistics: those that a policy's option names are read, and a server writes its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import RunDirError, read_json, write_json

from continuum_server.policy.base import Policy
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.vllm_plugin.versions import PluginError

logger = logging.getLogger("continuum")

FILE = "tool_statistics.json"
"""The file's name in a run directory."""


class StatisticsError(PluginError):
    """A file of statistics cannot be used; the message names it."""


def load_statistics(policy: Policy) -> None:
    """Load the statistics that the policy's option ``statistics`` names: files or run directories, merged if several.

    Raises:
        StatisticsError: a file is missing or has another form.
    """
    named = getattr(policy.options, "statistics", None)
    if not named:
        return
    found = read_statistics(named, policy.name)
    try:
        policy.import_statistics(found)
    except ValueError as error:
        raise StatisticsError(_fault(named, policy.name, error)) from error


def read_statistics(named: str, policy: str) -> dict[str, Any]:
    """What files or run directories, separated by commas, hold together.

    Raises:
        StatisticsError: a file is missing or has another form.
    """
    paths = [Path(name.strip()) for name in named.split(",") if name.strip()]
    files = [path / FILE if path.is_dir() else path for path in paths]
    try:
        return merge_statistics([read_json(file) for file in files])
    except (RunDirError, ValueError) as error:
        raise StatisticsError(_fault(named, policy, error)) from error


def _fault(named: str, policy: str, error: Exception) -> str:
    return f"policy {policy!r}: option statistics = {named}: {error}"


SAVE_EVERY_S = 30.0
COPY_SHARE = 1e-3
"""Largest share of the scheduler's time that copying statistics may take; slower copies are made less often."""
CLOSE_S = 10.0
"""How long ``close`` waits for a disk that hangs."""


class StatisticsFile:
    """Keeps what a server's policy learns in a file. Never raises.

    The scheduler's thread copies the statistics: at most ``sample_window`` times of each of ``max_tools`` tools, which
    takes 1 ms for ten tools and 30 ms at the limits' defaults (``benchmarks/statistics_cost.py``). Another thread
    writes the copy.

    Args:
        path: the file; None: nothing is read or written.
        policy: learns.
        clock: seconds.
    """

    def __init__(self, path: Path | None, policy: Policy, clock: Callable[[], float]) -> None:
        self._path = path
        self._policy = policy
        self._clock = clock
        self._due_s = clock() + SAVE_EVERY_S
        self._writer: threading.Thread | None = None

    def load(self) -> None:
        """Give the policy what an earlier server learned."""
        if self._path is None or not self._path.exists():
            return
        try:
            self._policy.import_statistics(read_json(self._path))
            logger.info("continuum: statistics from %s", self._path)
        except Exception as error:  # noqa: BLE001 - a file that cannot be used must not keep a server from starting
            logger.warning("continuum: statistics not loaded: %s", error)

    def save_when_due(self, now_s: float) -> None:
        """Called by the scheduler's thread: save if it is time and the last save is done."""
        if self._path is not None and now_s >= self._due_s and not self._is_writing:
            began_s = self._clock()
            self._save(self._path)
            self._due_s = now_s + max(SAVE_EVERY_S, (self._clock() - began_s) / COPY_SHARE)

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Save a last time. Waits up to ``patience_s`` for an earlier write, and as long for this one."""
        if self._path is not None:
            self.wait(patience_s)
            if not self._is_writing:
                self._save(self._path)
                self.wait(patience_s)

    def wait(self, patience_s: float = CLOSE_S) -> None:
        """Wait until the last save is written."""
        if self._writer is not None:
            self._writer.join(patience_s)

    @property
    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _save(self, path: Path) -> None:
        try:
            statistics = self._policy.export_statistics()
            if statistics:
                writer = threading.Thread(
                    target=_write, args=(path, statistics), name="continuum-statistics", daemon=True
                )
                writer.start()
                self._writer = writer
        except Exception as error:  # noqa: BLE001 - a policy is anybody's code, and must not end the engine
            _warn_not_saved(error)


def _write(path: Path, statistics: dict[str, Any]) -> None:
    try:
        write_json(path, statistics)
    except Exception as error:  # noqa: BLE001 - the thread's outermost call
        _warn_not_saved(error)


def _warn_not_saved(error: Exception) -> None:
    logger.warning("continuum: statistics not saved: %s", error)
