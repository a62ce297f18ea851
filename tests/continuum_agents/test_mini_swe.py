"""The real mini-swe-agent on real code, against a real vLLM server with an emulated GPU and scripted answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS
from agent_checks import (
    a_replay_has_the_same_turns_and_tokens,
    pins_are_hit_by_the_next_turn,
    the_trace_is_what_the_server_saw,
)
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.run_dir import read_manifest
from live_server import Live, live

NAMES = {"roman", "spans", "slugs"}
REPLIES = SCENARIOS / "mini-swe-replies.jsonl"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["static-ttl", "continuum"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that knows what a model would say. Its holds outlast the tools: a long constant; for ``continuum``, with
    no samples yet, a machine on which prefill is slow, so that tau = ln(T + C) is seconds."""
    folder = tmp_path_factory.mktemp("agents")
    profile = folder / "profile.json"
    profile.write_text(json.dumps({"prefill": {"a": 0.0, "b": 1.0, "c": 0.0}}))
    config: dict[str, Any] = {
        "static-ttl": {"policy_options": {"ttl_s": 120.0}},
        "continuum": {"profile": profile},
    }[request.param]
    emulated = EmulatedSettings(time_scale=20.0, replies=str(REPLIES))
    with live(folder, policy=request.param, kv_blocks=4000, max_model_len=16_000, emulated=emulated, **config) as found:
        yield found


def test_three_programs_at_once(server: Live, tmp_path: Path, start: Any) -> None:
    out = tmp_path / "run"
    batch = start(SCENARIOS / "tasks.jsonl", server.server.url, out, "--workers", "3", "--time-limit", "120")
    status, said = batch.wait()
    assert status == 0, said
    programs = batch.programs()
    assert {name: (done["status"], done["passed"]) for name, done in programs.items()} == {
        name: ("Submitted", True) for name in NAMES
    }
    assert max(done["start_s"] for done in programs.values()) < min(done["end_s"] for done in programs.values())
    the_patches_solve_the_tasks(batch.predictions(), tmp_path)
    the_trace_is_what_the_server_saw(server, out, NAMES)
    pins_are_hit_by_the_next_turn(server, NAMES, all_of_them=server.server.config.policy == "static-ttl")
    a_replay_has_the_same_turns_and_tokens(out, tmp_path / "replayed")
    if server.server.config.policy == "static-ttl":
        again = start(SCENARIOS / "tasks.jsonl", server.server.url, tmp_path / "again", "--workers", "3")
        assert again.wait()[0] == 0
        assert {name: done["status"] for name, done in again.programs().items()} == dict.fromkeys(NAMES, "Submitted")
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
