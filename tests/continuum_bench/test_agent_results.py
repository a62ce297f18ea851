"""A batch's directory, whatever becomes of the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_agents.protocol import Start
from continuum_bench.agents.results import Results, show_results
from continuum_bench.agents.runner import ProgramRecord
from continuum_traces.json_io import RunDirError
from continuum_traces.schema import Hardware, Manifest, Workload

START = Start("p", "Mend it.", "/w", "http://x/v1", "m", "/r", "/t.json")


def results(out: Path) -> Results:
    return Results(out, Manifest(workload=Workload(name="agent mini-swe")), START, "mini-swe-agent")


def test_a_batch_goes_on_with_more_programs_and_not_with_another_model(tmp_path: Path) -> None:
    def begun(programs: int, model: str) -> None:
        facts = {"workload": Workload(name="agent mini-swe", programs=programs), "hardware": Hardware(model=model)}
        manifest = Manifest(created="now", **facts)  # type: ignore[arg-type]
        Results(tmp_path / "out", manifest, START, "mini-swe-agent").close()

    begun(2, "m")
    (tmp_path / "out" / "programs.jsonl").write_text("{}\n")
    begun(3, "m")
    with pytest.raises(RunDirError, match=r"holds another run: hardware\.model differs: 'm' against 'n' now"):
        begun(3, "n")


def test_programs_that_were_not_run_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with results(tmp_path / "out") as found:
        found.to_run = 3
        found.ended(ProgramRecord("a", "a", 0.0, status="Interrupted"))
    show_results(found, as_json=False)
    assert "1 programs: 1 Interrupted, 2 not run" in " ".join(capsys.readouterr().err.split())


def test_a_batch_that_fails_leaves_its_directory_free(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="another run is writing there"), results(tmp_path / "out"):
        results(tmp_path / "out")
    with results(tmp_path / "out") as again:
        assert again.predictions == {}
