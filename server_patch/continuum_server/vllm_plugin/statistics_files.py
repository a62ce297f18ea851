"""Files of tool statistics: read the files in a policy's option ``statistics``, and write a server's own file."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from continuum_traces.json_io import RunDirError, read_json, write_json

from continuum_server.policy.base import Policy
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.record_file import lock, lock_of
from continuum_server.vllm_plugin.versions import PluginError

logger = logging.getLogger("continuum")

FILE = "tool_statistics.json"
"""The file's name in a run directory."""


class StatisticsError(PluginError):
    """A file of statistics cannot be used. The message names the file."""


def load_statistics(policy: Policy) -> None:
    """Load the files or run directories in the policy's option ``statistics``.

    Raises:
        StatisticsError: a file is missing or has another form.
    """
    named = getattr(policy.options, "statistics", None)
    if named:
        policy.import_statistics(read_statistics(named, policy.name))


def read_statistics(named: str, policy: str) -> dict[str, Any]:
    """Merge the statistics in files or run directories, whose names are separated by commas.

    Raises:
        StatisticsError: a file is missing or has another form.
    """
    paths = [Path(name.strip()) for name in named.split(",") if name.strip()]
    try:
        return merge_statistics([read_json(path / FILE if path.is_dir() else path) for path in paths])
    except (RunDirError, ValueError) as error:
        raise StatisticsError(f"policy {policy!r}: option statistics = {named}: {error}") from error


SAVE_EVERY_S = 30.0
CLOSE_S = 10.0
"""How long ``close`` waits for a disk that does not respond."""


class StatisticsFile:
    """A file with the statistics that a server's policy has learned. Never raises an exception.

    The file is locked, so that only one server writes it. A file that cannot be read or locked is left as it is.
    Sections that the policy does not write, because another policy learned them, are kept.

    The scheduler's thread copies the statistics: at most ``sample_window`` times of each of ``max_tools`` tools, which
    takes 1 ms for ten tools and 30 ms at the limits' defaults (``policy_cost.py --table statistics``). Another thread
    writes the copy.

    Args:
        path: the file; None: nothing is read or written.
        policy: the policy that learns.
        clock: returns seconds.
    """

    def __init__(self, path: Path | None, policy: Policy, clock: Callable[[], float]) -> None:
        self._path = path
        self.policy = policy
        self._due_s = clock() + SAVE_EVERY_S
        self._writer: threading.Thread | None = None
        self._kept: dict[str, Any] = {}
        """The file's sections that the policy does not write."""
        self._lock: int | None = None

    def load(self) -> None:
        """Lock the file, and load the statistics of an earlier server, or of an earlier policy of this server."""
        if self._path is None:
            return
        try:
            self._lock = lock(lock_of(self._path)) if self._lock is None else self._lock
            if self._path.exists():
                self._kept = read_json(self._path)
                self.policy.import_statistics(self._kept)
                logger.info("continuum: statistics from %s", self._path)
        except Exception as error:  # noqa: BLE001 - a file that cannot be used must not keep a server from starting
            logger.warning("continuum: statistics not loaded, and none are saved to %s: %s", self._path, error)
            self._path = None

    def save_when_due(self, now_s: float) -> None:
        """Save if the next save is due and the last one is complete. Only the scheduler's thread may call this."""
        if self._path is not None and now_s >= self._due_s and not self._is_writing:
            self._save(self._path)
            self._due_s = now_s + SAVE_EVERY_S

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Save a last time. Wait up to ``patience_s`` for an earlier save, and as long again for this one."""
        if self._path is not None:
            self.wait(patience_s)
            if not self._is_writing:
                self._save(self._path)
                self.wait(patience_s)
        self._path = None
        if self._lock is not None and not self._is_writing:
            os.close(self._lock)
            self._lock = None

    def wait(self, patience_s: float = CLOSE_S) -> None:
        """Wait until the last save is complete."""
        if self._writer is not None:
            self._writer.join(patience_s)

    @property
    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _save(self, path: Path) -> None:
        try:
            statistics = self.policy.export_statistics()
            if statistics:
                self._kept = {name: section for name, section in self._kept.items() if name not in statistics}
                whole = {**statistics, **self._kept}
                writer = threading.Thread(target=_write, args=(path, whole), name="continuum-statistics", daemon=True)
                writer.start()
                self._writer = writer
        except Exception as error:  # noqa: BLE001 - a user's policy must not end the engine
            _warn_not_saved(error)


def _write(path: Path, statistics: dict[str, Any]) -> None:
    try:
        write_json(path, statistics)
    except Exception as error:  # noqa: BLE001 - the thread's outermost call
        _warn_not_saved(error)


def _warn_not_saved(error: Exception) -> None:
    logger.warning("continuum: statistics not saved: %s", error)
