"""The files of examples/ run as they say: agents against an emulated server, and a notebook. The commands of
docs/how-to/my-policy.md play the policy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from live_server import live
from recorded_runs import write_recorded

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = shutil.copytree(EXAMPLES, tmp_path / "examples")
    monkeypatch.chdir(copied)
    return copied


@pytest.mark.slow
def test_the_agents(folder: Path) -> None:
    emulated = EmulatedSettings(time_scale=20.0, replies=str(folder / "replies.jsonl"))
    with live(folder, emulated=emulated) as server:
        environ = {**os.environ, "OPENAI_BASE_URL": f"{server.server.url}/v1", "OPENAI_API_KEY": "none"}
        said = {
            name: subprocess.run(
                [sys.executable, f"{name}.py"], env=environ, capture_output=True, text=True, check=True, timeout=300
            ).stdout
            for name in ("agent", "untagged_agent", "rollouts")
        }
        served = [event.turn for event in server.events("task-7/sample-7", "finish") if event.event == "finish"]
    assert said["agent"] == "Five examples and their README.\n"
    assert "6 messages\n3 turns, recognised by their prompts; last hit 9" in said["untagged_agent"]
    assert said["rollouts"] == "8 samples of 3 turns\n"
    assert served == [0, 1, 2]
    samples = (json.loads(line) for line in (folder / "runs" / "rollouts" / "turns.jsonl").read_text().splitlines())
    assert Counter(turn["program_id"] for turn in samples) == {f"task-7/sample-{number}": 3 for number in range(8)}


def test_the_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in ("vllm", "working-set"):
        write_recorded(folder / "runs" / "mine" / f"{policy}-seed0", policy, 0, [4.0, 6.0], turns=2)
    monkeypatch.setenv("MPLBACKEND", "svg")
    names: dict[str, object] = {}
    for cell in json.loads((folder / "run.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert set(names["jct"].arm) == {"vllm-seed0", "working-set-seed0"}  # type: ignore[attr-defined]
    assert {"jct.svg", "hits.svg"} <= {path.name for path in folder.iterdir()}
