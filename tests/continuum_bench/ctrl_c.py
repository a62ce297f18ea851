"""Ctrl-C as a user presses it, at a moment that its test chooses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def interrupted(arguments: list[str], line: str, how: int = signal.SIGINT) -> tuple[int, str]:
    """Run in a process group of its own, stop it (by Ctrl-C) when the line appears; exit code and the rest of stderr.

    Reading stderr to its end proves that no process of the run is left to write to it.
    """
    command = [sys.executable, "-m", "continuum_bench", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stderr is not None
        for text in run.stderr:
            if line in text:
                break
        os.killpg(run.pid, how)
        rest = run.stderr.read()
    return run.returncode, rest
