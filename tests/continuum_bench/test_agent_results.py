"""A batch's directory, whatever becomes of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_agents.protocol import Start
from continuum_bench.agents.batch import ProgramRecord
from continuum_bench.agents.results import Results, show_results
from continuum_bench.errors import BenchError
from continuum_traces.schema import Hardware, Manifest, Workload

START = Start("p", "Mend it.", "/w", "http://x/v1", "m", "/r", "/t.json")


def results(out: Path) -> Results:
    return Results(out, Manifest(workload=Workload(name="agent mini-swe")), START, "mini-swe-agent")


def test_a_batch_is_not_resumed_against_another_server_or_model(tmp_path: Path) -> None:
    def begun(url: str, model: str) -> None:
        manifest = Manifest(
            workload=Workload(name="agent mini-swe"),
            hardware=Hardware(model=model),
            notes=(f"server: {url}",),
            created="now",
        )
        Results(tmp_path / "out", manifest, START, "mini-swe-agent").__exit__()

    begun("http://a/v1", "m")
    begun("http://a/v1", "m")
    for url, model in (("http://b/v1", "m"), ("http://a/v1", "n")):
        with pytest.raises(BenchError, match="was begun against server: http://a/v1, model m; resume it there"):
            begun(url, model)


def test_programs_that_were_not_run_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with results(tmp_path / "out") as found:
        found.to_run = 3
        found.ended(ProgramRecord("a", "a", 0.0, status="Interrupted"))
    show_results(found, as_json=False)
    assert "1 programs: 1 Interrupted, 2 not run" in " ".join(capsys.readouterr().err.split())


def test_a_batch_that_fails_leaves_its_directory_free(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="another batch is running there"), results(tmp_path / "out"):
        results(tmp_path / "out")
    with results(tmp_path / "out") as again:
        assert again.predictions == {}
