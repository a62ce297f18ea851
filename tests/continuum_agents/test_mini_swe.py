"""The real mini-swe-agent on real code, against a real vLLM server with an emulated GPU and scripted answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS, events_of
from continuum_bench.cli import app
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.importers.registry import read_any
from continuum_traces.jsonl import validate
from continuum_traces.run_dir import read_manifest, read_turns
from continuum_traces.schema import Program
from live_server import Live, live
from typer.testing import CliRunner

REPLIES = SCENARIOS / "mini-swe-replies.jsonl"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["static-ttl", "continuum"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that knows what a model would say. Its holds outlast the tools: a long constant; for ``continuum``, with
    no samples yet, a machine on which prefill is slow, so that tau = ln(T + C) is seconds."""
    folder = tmp_path_factory.mktemp("agents")
    profile = folder / "profile.json"
    profile.write_text(json.dumps({"prefill": {"a": 0.0, "b": 0.01, "c": 0.0}}))
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
        name: ("Submitted", True) for name in ("roman", "spans", "slugs")
    }
    assert max(done["start_s"] for done in programs.values()) < min(done["end_s"] for done in programs.values())
    the_patches_solve_the_tasks(batch.predictions(), tmp_path)
    the_trace_is_what_the_server_saw(server, out)
    pins_are_hit_by_the_next_turn(server, all_of_them=server.server.config.policy == "static-ttl")
    a_replay_has_the_same_turns_and_tokens(out, tmp_path / "replayed")
    assert read_manifest(out).workload["name"] == "agent mini-swe"
    its_own_record_has_tool_times(out)


def the_patches_solve_the_tasks(predictions: dict[str, Any], folder: Path) -> None:
    """preds.json is SWE-bench's, and its patches apply to the code as given."""
    assert set(predictions) == {"roman", "spans", "slugs"}
    for name, prediction in predictions.items():
        assert set(prediction) == {"model_name_or_path", "instance_id", "model_patch"}
        fresh = folder / f"fresh-{name}"
        shutil.copytree(SCENARIOS / name, fresh)
        tests = ["python3", "-m", "unittest", "-q"]
        assert subprocess.run(tests, cwd=fresh, capture_output=True).returncode != 0
        subprocess.run(["git", "apply"], cwd=fresh, input=prediction["model_patch"], text=True, check=True)
        assert subprocess.run(tests, cwd=fresh, capture_output=True).returncode == 0


def the_trace_is_what_the_server_saw(server: Live, out: Path) -> None:
    """Ids, turns, tokens, tools: the scheduler's record, the client's records and the trace agree."""
    assert list(validate(out / "trace.jsonl")) == []
    traced = programs_of(out / "trace.jsonl")
    assert set(traced) == {"roman", "spans", "slugs"}
    for name, program in traced.items():
        events = events_of(server, name, len(program.turns))
        finishes = [event for event in events if event.event == "finish"]
        starts = [event for event in events if event.event == "start"]
        assert [event.turn for event in finishes] == list(range(len(program.turns)))
        assert [event.output_tokens for event in finishes] == [turn.output_tokens for turn in program.turns]
        assert [event.prompt_tokens for event in starts] == program.prompt_tokens()
        assert [event.tool for event in finishes] == [tools_of(turn.tool_calls) for turn in program.turns]
        assert {event.status for event in finishes} == {"stop"}
        for turn in program.turns:
            assert all(call.duration_s is not None for call in turn.tool_calls)
    recorded = [(turn.program_id, turn.turn) for turn in read_turns(out)]
    assert len(recorded) == len(set(recorded)) == sum(len(program.turns) for program in traced.values())


def pins_are_hit_by_the_next_turn(server: Live, all_of_them: bool) -> None:
    """A release ends the last. ``continuum`` holds no turn without a tool, and a slow tool may outlast a hold."""
    for name in ("roman", "spans", "slugs"):
        events = events_of(server, name, 1)
        ends = [event.reason for event in events if event.event == "unpin"]
        if all_of_them:
            turns = sum(event.event == "finish" for event in events)
            assert ends == ["hit"] * (turns - 1) + ["last"]
            assert all(event.hit_tokens for event in events if event.event == "start" and event.turn > 0)
        assert "hit" in ends
        assert set(ends) <= {"hit", "last", "expired"}
        assert ends.count("last") <= 1
    assert not server.pins()


def a_replay_has_the_same_turns_and_tokens(out: Path, replayed: Path) -> None:
    """The emitted trace, on the virtual engine."""
    arguments = ["replay", str(out / "trace.jsonl"), "--policy", "continuum", "--out", str(replayed), "--no-report"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (run,) = {file.parent for file in replayed.glob("*/turns.jsonl")}
    assert tokens_of(run) == tokens_of(out)


def its_own_record_has_tool_times(out: Path) -> None:
    """mini-swe-agent's trajectory carries what we measured."""
    trajectory = json.loads((out / "roman" / "roman.traj.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"
    observed = [message for message in trajectory["messages"] if message["role"] == "tool"]
    assert all(message["extra"]["tool_time_s"] > 0 for message in observed)


def programs_of(trace: Path) -> dict[str, Program]:
    return {program.program_id: program for program in read_any(trace, None)}


def tools_of(calls: Any) -> str | None:
    """As the server names what runs after a turn."""
    return "+".join(sorted({call.name for call in calls})) or None


def tokens_of(run: Path) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    return {(turn.program_id, turn.turn): (turn.prompt_tokens, turn.output_tokens) for turn in read_turns(run)}
