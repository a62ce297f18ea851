"""The tasks that agentperf-local (Artificial Analysis) has recorded, and has within its package."""

from __future__ import annotations

from pathlib import Path
from shutil import which

INSTALLED = "agentperf:default"
"""The name by which commands take these tasks, in place of a trace's file."""
COMMAND = "agentperf-local"
TASKS = "agentperf_local/data/replays/agentperf-default-v1/traces"


def installed_tasks() -> Path | None:
    """Return the folder of the recorded tasks of the agentperf-local on the PATH; None: there is none."""
    script = which(COMMAND)
    if script is None:
        return None
    return next(Path(script).resolve().parents[1].glob(f"lib/python3*/site-packages/{TASKS}"), None)
