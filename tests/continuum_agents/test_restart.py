"""A server that goes away and comes back while agents run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_batches import Batch, task_file, through_a_restart
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.jsonl import validate
from continuum_traces.run_dir import read_turns

pytestmark = pytest.mark.slow

COMMANDS = ("ls", "until [ -e go ]; do sleep 0.1; done", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def test_a_program_outlives_its_server(tmp_path: Path, start: Callable[..., Batch]) -> None:
    """mini-swe-agent tries again until the new server answers; the id stays, and so does the record."""
    script = tmp_path / "script.jsonl"
    replies = [{"tool_calls": [{"name": "bash", "arguments": {"command": command}}]} for command in COMMANDS]
    script.write_text(json.dumps({"program": "patient", "replies": replies}) + "\n")
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script))
    config: dict[str, Any] = {"policy": "static-ttl", "kv_blocks": 2000, "max_model_len": 16_000, "emulated": emulated}
    tasks, out = task_file(tmp_path, "patient"), tmp_path / "run"
    batch, events = through_a_restart(tmp_path, lambda url: start(tasks, url, out, "--tool-limit", "600"), config)
    assert batch.programs()["patient"]["status"] == "Submitted"
    assert [event.turn for event in events if event.event == "finish"] == [0, 1, 2]
    assert list(validate(out / "trace.jsonl")) == []
    answered = [turn for turn in read_turns(out) if turn.error is None]
    assert [turn.program_id for turn in answered] == ["patient"] * 5
