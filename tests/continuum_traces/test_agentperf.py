"""The recorded tasks of an installed agentperf-local (``replay agentperf:default``)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from continuum_bench.errors import BenchError
from continuum_bench.options.run import ReplayOptions
from continuum_bench.workload.agentperf import COMMAND, INSTALLED, TASKS
from continuum_bench.workload.load import load_trace

TASK = Path(__file__).with_name("samples") / "agentperf-task" / "bees.jsonl"


def test_tasks_of_the_package_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool's command is often a link into its environment."""
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    with pytest.raises(BenchError, match=f"{COMMAND} is not on the PATH"):
        load_trace("replay", ReplayOptions(traces=Path(INSTALLED)))
    for folder in ("links", "tool/bin", f"tool/lib/python3.12/site-packages/{TASKS}"):
        (tmp_path / folder).mkdir(parents=True)
    script = tmp_path / "tool/bin" / COMMAND
    script.touch(0o755)
    (tmp_path / "links" / COMMAND).symlink_to(script)
    shutil.copy(TASK, tmp_path / f"tool/lib/python3.12/site-packages/{TASKS}")
    trace = load_trace("replay", ReplayOptions(traces=Path(INSTALLED)))
    assert [(program.program_id, len(program.turns)) for program in trace.programs] == [("bees", 2), ("wasps", 1)]
    assert trace.facts.more["file"] == INSTALLED
