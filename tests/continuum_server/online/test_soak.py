"""``benchmarks/soak.py``: its small parts, and a few seconds of it on a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from continuum_traces.records import write_rows
from continuum_traces.records.run_dir import EVENTS
from continuum_traces.schema import SchedulerEvent
from live_server import MARK, ends_soon, sessions_of

REPO = Path(__file__).resolve().parents[3]


def test_errors_of_the_plugin_are_told_from_others() -> None:
    full, crash = soak.plugin_errors(Path(__file__).with_name("soak_log.txt").read_text())
    assert "No space left" in full
    assert "KeyError: 'r1'" in crash


def test_what_has_no_end_in_the_record_is_counted(tmp_path: Path) -> None:
    rows = [(0.0, "arrive", "p", 0, "r0"), (0.5, "start", "p", 0, "r0"), (1.0, "pin", "p", 0, "r0")]
    rows += [(2.0, "arrive", "p", 1, "r1"), (3.0, "arrive", "q", 0, "r2")]
    ends = [SchedulerEvent(t, "finish", name, 0, r, status="abort") for t, name, r in ((1, "p", "r0"), (4, "q", "r2"))]
    write_rows(tmp_path / EVENTS, [*(SchedulerEvent(*row) for row in rows), *ends])  # type: ignore[arg-type]
    record = soak.read_record(tmp_path)
    assert (record.events, record.unended) == (7, 2)  # the turn r1, and p's pin
    assert (record.aborted_waiting, record.aborted_running) == (1, 1)
    (tmp_path / EVENTS).write_text("no record\n")
    assert "scheduler_timestamps.jsonl:1" in soak.read_record(tmp_path).fault


@pytest.mark.slow
def test_a_short_soak_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(REPO / "benchmarks" / "soak.py"), "--minutes", "0.1", "--policy", "continuum"]
    environment = {**os.environ, MARK: str(tmp_path)}
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "soak")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| engine killed | 1 |" in done.stdout
    assert re.search(r"aborted[^|]*\| [1-9]", done.stdout), done.stdout  # clients hung up
    assert "| free blocks at rest | 1199 of 1199 |" in done.stdout
    assert ends_soon(sessions_of(tmp_path)) == []
