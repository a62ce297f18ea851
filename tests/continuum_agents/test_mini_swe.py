"""The real mini-swe-agent on real code, against a real vLLM server with an emulated GPU and scripted answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS, scripted
from agent_checks import all_is_well
from continuum_traces.run_dir import read_manifest
from live_server import Live

NAMES = {"roman", "spans", "slugs"}
REPLIES = SCENARIOS / "mini-swe-replies.jsonl"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its holds outlast the tools."""
    with scripted(tmp_path_factory.mktemp("agents"), REPLIES, policy_options={"ttl_s": 120.0}) as found:
        yield found


def test_three_programs_at_once(server: Live, tmp_path: Path, start: Any) -> None:
    out = tmp_path / "run"
    batch = start(SCENARIOS / "tasks.jsonl", server.server.url, out, "--workers", "3", "--time-limit", "120")
    all_is_well(batch, server, "Submitted", NAMES, all_pins_are_hit=True)
    the_patches_solve_the_tasks(batch.predictions(), tmp_path)
    again = start(SCENARIOS / "tasks.jsonl", server.server.url, tmp_path / "again", "--workers", "3")
    assert again.wait()[0] == 0
    assert again.ends() == dict.fromkeys(NAMES, ("Submitted", True))
    assert read_manifest(out).workload.name == "agent mini-swe"
    its_own_record_has_tool_times(out)


def the_patches_solve_the_tasks(predictions: dict[str, Any], folder: Path) -> None:
    """preds.json is SWE-bench's, and its patches apply to the code as given."""
    assert set(predictions) == NAMES
    for name, prediction in predictions.items():
        assert set(prediction) == {"model_name_or_path", "instance_id", "model_patch"}
        fresh = folder / f"fresh-{name}"
        shutil.copytree(SCENARIOS / name, fresh)
        tests = ["python3", "-m", "unittest", "-q"]
        assert subprocess.run(tests, cwd=fresh, capture_output=True).returncode != 0
        subprocess.run(["git", "apply"], cwd=fresh, input=prediction["model_patch"], text=True, check=True)
        assert subprocess.run(tests, cwd=fresh, capture_output=True).returncode == 0


def its_own_record_has_tool_times(out: Path) -> None:
    """mini-swe-agent's trajectory carries what we measured."""
    trajectory = json.loads((out / "roman" / "roman.traj.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"
    observed = [message for message in trajectory["messages"] if message["role"] == "tool"]
    assert all(message["extra"]["tool_time_s"] > 0 for message in observed)
