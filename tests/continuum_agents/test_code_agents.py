"""The real mini-swe-agent and OpenHands on real code, against a real vLLM server with an emulated GPU and scripted
answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_batches import SCENARIOS, Batch
from agent_checks import all_is_well
from code_agents import MINI, Kind
from continuum_bench.agents.tasks import Task, read_tasks
from continuum_traces.importers.registry import read_any
from continuum_traces.records.run_dir import read_manifest
from live_server import Live

pytestmark = pytest.mark.slow


def test_three_programs_at_once(kind: Kind, server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    out, file = tmp_path / "run", SCENARIOS / kind.tasks
    tasks = {task.instance_id: task for task in read_tasks(file)}
    batch = start(file, server.server.url, out, "--workers", "3", "--time-limit", "120", framework=kind.name)
    programs = all_is_well(batch, server, kind.good, set(tasks), all_pins_are_hit=kind is MINI)
    assert read_manifest(out).workload.name == f"agent {kind.name}"
    patches_make_what_the_agents_left(batch, tasks)
    if kind is MINI:
        its_own_record_has_tool_times(out)
    else:
        assert programs["roman"]["tools"] == ["ls", "cat", "python3", "file_editor", "python3", "finish"]
        its_own_record_says_the_same(out, set(tasks))
        (fix,) = map(json.loads, (out / "fix_patches.jsonl").read_text().splitlines())
        patch = batch.predictions()["shop__words-7"]["model_patch"]
        assert fix == {"org": "shop", "repo": "words", "number": 7, "fix_patch": patch}


def patches_make_what_the_agents_left(batch: Batch, tasks: dict[str, Task]) -> None:
    """preds.json is SWE-bench's, and its patches apply to the code as given."""
    assert set(batch.predictions()) == set(tasks)
    for name, prediction in batch.predictions().items():
        assert set(prediction) == {"model_name_or_path", "instance_id", "model_patch"}
        fresh, given = batch.out.parent / f"fresh-{name}", tasks[name].folder
        assert given is not None
        shutil.copytree(given, fresh)
        subprocess.run(["git", "apply"], cwd=fresh, input=prediction["model_patch"], text=True, check=True)
        for file in (file for file in fresh.rglob("*.*") if "__pycache__" not in file.parts):
            assert file.read_text() == (batch.out / "workspaces" / name / file.relative_to(fresh)).read_text()


def its_own_record_has_tool_times(out: Path) -> None:
    """mini-swe-agent's trajectory carries what we measured."""
    trajectory = json.loads((out / "roman" / "roman.traj.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"
    observed = [message for message in trajectory["messages"] if message["role"] == "tool"]
    assert all(message["extra"]["tool_time_s"] > 0 for message in observed)


def its_own_record_says_the_same(out: Path, names: set[str]) -> None:
    """OpenHands' events, imported as a trace, have our trace's tokens and tools."""
    ours = {program.program_id: program for program in read_any(out / "trace.jsonl")}
    for name in names:
        (theirs,) = read_any(out / name / f"{name}.traj.json")
        assert theirs.prompt_tokens() == ours[name].prompt_tokens()
        for turn, mine in zip(theirs.turns, ours[name].turns, strict=True):
            assert turn.output_tokens == mine.output_tokens
            assert [call.name for call in turn.tool_calls] == [call.name for call in mine.tool_calls]
            for call, own in zip(turn.tool_calls, mine.tool_calls, strict=True):
                assert call.duration_s is not None
                assert own.duration_s == pytest.approx(call.duration_s, abs=0.05)
