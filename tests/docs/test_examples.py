"""The workflow of examples/ci, as far as it can be run, and examples/to_mlflow.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import yaml
from continuum_traces.records.run_dir import read_manifest

REPO = Path(__file__).resolve().parents[2]
MLFLOW = REPO / "examples" / "to_mlflow.py"
EXPERIMENT, WORKFLOW = ((REPO / "examples" / "ci" / name).read_text("utf-8") for name in ("ci.yaml", "agents.yml"))


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW)["jobs"].values()
    return list(job["steps"])


@pytest.mark.slow
def test_the_workflow_s_commands_run(tmp_path: Path) -> None:
    """At a small size; then once with a limit that is too low."""
    small = re.sub(r"num_programs: \d+", "num_programs: 2\nlength_scale: 0.2", EXPERIMENT)
    small = re.sub(r"seeds: \d+", "seeds: 3\nno_report: true", small)
    for folder in (tmp_path, tmp_path / "base"):
        folder.mkdir(exist_ok=True)
        (folder / "ci.yaml").write_text(small)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "continuum-bench"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m continuum_bench "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])

    def sh(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=900,
        )

    *plays, compare = [step["run"] for step in steps() if "continuum-bench" in step.get("run", "")]
    assert len(plays) == 2
    for play in plays:
        done = sh(play)
        assert (done.returncode, done.stderr) == (0, "")  # quiet: true
        assert "JCT mean" in done.stdout
    assert read_manifest(tmp_path / "runs" / "new" / "vllm-seed1").workload.programs == 2
    assert sh(compare).returncode == 0
    assert sh(compare.replace("> 1.05", "> 0.5")).returncode == 3


def test_summary_json_holds_what_is_logged_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = json.loads((REPO / "tests" / "golden" / "run_files.json").read_text())
    keys = golden["keys"]["summary.json"]
    assert {f"manifest.{name}" for name in ("workload.jps", "hardware.gpu", "hardware.model", "modelled")} <= set(keys)
    monkeypatch.chdir(tmp_path)
    arm = {"jct_mean_s": 1.5, "policy": "vllm", "seeds": [0], "intervals": {"jct_mean_s": [1.0, 2.0], "pins": None}}
    manifest = {"workload": {"jps": 0.1, "name": "swebench"}, "hardware": {"gpu": "g", "model": "m"}}
    Path("runs/three").mkdir(parents=True)
    Path("runs/three/summary.json").write_text(json.dumps({"policies": {"vllm": arm}, "manifest": manifest}))
    mlflow = MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    exec(compile(MLFLOW.read_text(encoding="utf-8"), str(MLFLOW), "exec"), {})
    bounds = {"jct_mean_s.low": 1.0, "jct_mean_s.high": 2.0}
    assert mlflow.log_metrics.call_args_list == [call({"jct_mean_s": 1.5}), call(bounds)]
