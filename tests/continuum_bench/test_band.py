"""The same arms at low, mid and high step times: what is played, what a comparison says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_cli import bench, refused
from continuum_bench.errors import BenchError
from continuum_bench.options.run import RunOptions
from continuum_bench.virtual.engine_options import descriptions_at, engine_of
from continuum_bench.virtual.experiment import cells_for
from continuum_traces.run_dir import read_manifest, write_manifest
from continuum_traces.schema import Engine, StepTimesSource
from test_report_commands import write_run


def write_band(path: Path, band: str, slower: dict[str, float]) -> None:
    """Three seeds of each policy, at one end of the band."""
    for policy, factor in slower.items():
        for seed in range(3):
            run = path / f"{policy}-seed{seed}-{band}"
            write_run(run, policy, seed, factor)
            manifest = read_manifest(run)
            steps = StepTimesSource(kind="measured-table", band=band)
            hardware = replace(manifest.hardware, step_times=steps, prefill_curve={"a": len(band)})
            write_manifest(run, replace(manifest, hardware=hardware, engine_options=Engine(step_times=band)))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    write_band(tmp_path / "e", "low", {"vllm": 2.0, "continuum": 0.9})
    write_band(tmp_path / "e", "mid", {"vllm": 2.0, "continuum": 1.0})
    write_band(tmp_path / "e", "high", {"vllm": 3.0, "continuum": 1.0})
    return tmp_path / "e"


def test_a_verdict_that_holds_at_both_ends_says_so(three: Path) -> None:
    said = bench("compare", three).stdout
    assert "This holds at both ends of the step-time band (0.49 at low, " in said
    assert " at high)." in said
    for row in ("vllm, mid step times", "continuum, low step times", "continuum, high step times"):
        assert row in said
    data = json.loads(bench("compare", three, "--json").stdout)
    assert data["step_times"] == "mid"
    ratios = [data["ends"][band]["continuum"]["jct_mean_ratio"] for band in ("low", "high")]
    assert all(ratio < 0.75 for ratio in ratios)
    csv = bench("compare", three, "--format", "csv").stdout.splitlines()
    assert csv[0].startswith("jps,policy,step_times,")
    assert len(csv) == 1 + 6
    assert bench("report", three).exit_code == 0
    page = (three / "report.html").read_text(encoding="utf-8")
    assert "This holds at both ends of the step-time band" in page
    assert "also played: low and high" in page


def test_a_verdict_that_fails_at_one_end_names_it_and_says_what_holds_there(tmp_path: Path) -> None:
    write_band(tmp_path, "low", {"vllm": 2.0, "continuum": 1.0})
    write_band(tmp_path, "mid", {"vllm": 2.0, "continuum": 1.0})
    write_band(tmp_path, "high", {"vllm": 1.0, "continuum": 4.0})
    said = bench("compare", tmp_path).stdout
    assert "This does not hold at all step times: at high, continuum was slower than vllm: its programs took" in said
    assert "at low, " not in said


def test_another_policy_that_is_clearly_faster_at_one_end_is_named(tmp_path: Path) -> None:
    write_band(tmp_path, "low", {"vllm": 4.0, "static-ttl": 1.0, "continuum": 2.0})
    write_band(tmp_path, "mid", {"vllm": 4.0, "static-ttl": 2.0, "continuum": 1.0})
    assert "at low, static-ttl was the fastest" in bench("compare", tmp_path).stdout


def test_directories_of_the_ends_stand_side_by_side(tmp_path: Path) -> None:
    for band in ("low", "high"):
        write_band(tmp_path / band, band, {"vllm": 2.0, "continuum": 1.0})
    assert "holds at both ends" in bench("compare", tmp_path / "low", tmp_path / "high").stdout
    write_band(tmp_path / "mid", "mid", {"vllm": 2.0, "continuum": 1.0})
    assert "the other end of the band was not played" in bench("compare", tmp_path / "mid", tmp_path / "high").stdout
    assert "step times" not in bench("compare", tmp_path / "low").stdout


def test_runs_that_differ_in_more_than_the_band_are_refused(three: Path) -> None:
    run = three / "vllm-seed0-low"
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, hardware=replace(manifest.hardware, gpu="another")))
    assert "hardware.gpu differs" in refused("compare", three)


def test_each_end_is_played_where_the_ends_differ() -> None:
    wanted = RunOptions(gpu="a100", step_times="band")
    engine, _ = engine_of(wanted)
    assert engine.step_times == "mid"
    found = descriptions_at(wanted, engine)
    bands = {band: told.hardware.step_times.band for band, told in found.items()}
    assert bands == {band: band for band in ("low", "mid", "high")}
    cells = cells_for(["vllm"], {}, [0], [*found])
    assert [cell.name for cell in cells] == ["vllm-seed0-low", "vllm-seed0-mid", "vllm-seed0-high"]
    for gpu in ("h100", "rtx-4090"):
        assert descriptions_at(RunOptions(gpu=gpu, step_times="band"), engine) == {}
    assert descriptions_at(RunOptions(gpu="a100"), engine) == {}
    with pytest.raises(BenchError, match="--profile were measured and have no band"):
        descriptions_at(RunOptions(step_times="band", profile=Path("p.json")), engine)


@pytest.mark.slow
def test_the_band_is_played_and_told(tmp_path: Path) -> None:
    options = ("--jps", 1, "--num-programs", 3, "--policy", "vllm,continuum", "--gpu", "a100", "--step-times", "band")
    done = bench("bfcl", *options, "--no-report", "--out", tmp_path / "e")
    assert done.exit_code == 0, done.stderr
    data = json.loads((tmp_path / "e" / "summary.json").read_text(encoding="utf-8"))
    arms = [data["ends"]["low"]["vllm"], data["policies"]["vllm"], data["ends"]["high"]["vllm"]]
    times = [arm["jct_mean_s"] for arm in arms]
    assert times == sorted(times)
    assert times[0] < times[2]
