"""Ctrl-C while runs are under way in processes of their own: never lost, never stuck, and not taken from others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from continuum_bench.virtual.pool import Report, play_here
from pool_tasks import Dies, Ends, Lingers, Presses, plays


def test_ctrl_c_again_where_a_process_does_not_end(tmp_path: Path) -> None:
    told, before = tmp_path / "told", signal.getsignal(signal.SIGINT)
    said: list[Report] = []
    assert play_here(plays(Lingers("a", told), Presses("b", os.getpid(), 2, told)), 2, said.append)
    assert not [report for report in said if report.error]
    assert signal.getsignal(signal.SIGINT) is before


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    """A shell starts jobs in the background like that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    said: list[Report] = []
    try:
        interrupted = play_here(plays(Presses("a", os.getpid(), 2, ends=True)), 1, said.append)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert (interrupted, said[-1]) == (False, Report("a", state="done"))


@pytest.mark.slow
def test_in_another_thread() -> None:
    said: list[Report] = []
    thread = threading.Thread(target=lambda: play_here(plays(Ends("a"), Dies("b")), 1, said.append))
    thread.start()
    thread.join()
    ended = [report for report in said if report.state != "loading"]
    assert ended == [Report("a", state="done"), Report("b", state="failed", error="its process ended with exit code 3")]


def test_the_fork_server_does_not_receive_ctrl_c() -> None:
    """In a process of its own: here the server and the resource tracker may have been started before."""
    program = """
import multiprocessing.forkserver as forkserver, pathlib, signal
from continuum_bench.virtual.pool import _start_forkserver
_start_forkserver()
status = pathlib.Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
print(bool(blocked & 1 << signal.SIGINT - 1))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "True\n"
