"""A batch's directory, whatever becomes of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_agents.protocol import Start
from continuum_bench.agents.run import Results
from continuum_bench.errors import BenchError
from continuum_traces.schema import Manifest

START = Start("p", "Mend it.", "/w", "http://x/v1", "m", "/r", "/t.json")


def results(out: Path) -> Results:
    return Results(out, Manifest(workload={"name": "agent mini-swe"}), START, "mini-swe-agent")


def test_a_batch_that_fails_leaves_its_directory_free(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="another batch is running there"), results(tmp_path / "out"):
        results(tmp_path / "out")
    with results(tmp_path / "out") as again:
        assert again.predictions == {}
