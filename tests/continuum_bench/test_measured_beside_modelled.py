"""``compare`` of measured and modelled runs of the same arrivals: each kind has its table, and errors stand below."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_cli import bench, refused, succeeded
from continuum_traces.records.run_dir import read_manifest, write_manifest
from continuum_traces.schema import Engine, Workload
from recorded_runs import write_recorded


def write_both(folder: Path) -> tuple[Path, Path]:
    """Measured ``stock`` and ``continuum``; the model has them 25% slower and 10% faster. Seed 2 was only modelled."""
    measured, modelled = folder / "measured", folder / "modelled"
    for seed in range(3):
        for policy, times_s in (("vllm", [20.0, 40.0]), ("continuum", [10.0, 20.0])):
            factor = {"vllm": 1.25, "continuum": 0.9}[policy]
            name = {"vllm": "stock"}.get(policy, policy)
            if seed < 2:
                path = write_recorded(measured / f"{name}-{seed}", name, seed, times_s, gap_s=1.0)
                write_manifest(
                    path, replace(read_manifest(path), engine="http://h:1/v1", engine_options=Engine(chunk_tokens=256))
                )
            path = write_recorded(
                modelled / f"{name}-{seed}", policy, seed, [factor * each for each in times_s], gap_s=1.0
            )
            options = Engine(chunk_tokens=2048, block_size=16)
            write_manifest(path, replace(read_manifest(path), modelled=("time",), engine_options=options))
    return measured, modelled


def test_each_kind_has_its_table_and_the_error_of_the_model_stands_below(tmp_path: Path) -> None:
    done = succeeded("compare", *write_both(tmp_path))
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in done.stdout.partition("Modelled beside")[2].splitlines()
    ]
    rows = [line for line in lines if line[0] in ("vllm", "stock", "continuum")]
    assert [row[:7] for row in rows] == [
        ["vllm", "2", "30.0", "37.5", "+25.0%", "1.00", "1.00"],
        ["continuum", "2", "15.0", "13.5", "-10.0%", "0.50", "0.36"],
    ]
    assert "continuum was" not in done.stdout.partition("Modelled beside measured")[2]
    assert "note: engine_options.chunk_tokens: measured 256, modelled 2048" in done.stderr
    assert "block_size" not in done.stderr  # the server's is not known
    assert done.stdout.count("GPU time is modelled") == 2  # the modelled table and its latencies


def test_json_has_both_and_the_predictions(tmp_path: Path) -> None:
    *summaries, predictions = json.loads(succeeded("compare --json", *write_both(tmp_path)).stdout)
    assert [each["group"] for each in summaries] == ["measured", "modelled"]
    rows = predictions["predictions"]
    assert [(row["policy"], row["seeds"]) for row in rows] == [("vllm", [0, 1]), ("continuum", [0, 1])]
    assert [row["jct_mean_error"] for row in rows] == pytest.approx([0.25, -0.1])
    assert [rows[1][side]["jct_mean_ratio"] for side in ("measured", "modelled")] == pytest.approx([0.5, 13.5 / 37.5])


@pytest.mark.parametrize("option", ["--format csv", "--out x.csv", "--fail-if jct_mean>1"])
def test_a_table_or_a_gate_takes_one_kind(tmp_path: Path, option: str) -> None:
    said = refused(f"compare {option}", *write_both(tmp_path))
    assert "some of these runs are measured, others modelled" in said


def test_other_programs_and_other_arrivals_are_no_prediction(tmp_path: Path) -> None:
    measured, _ = write_both(tmp_path)
    for folder, gap_s, digest, message in (
        ("w", 1.0, "b" * 64, "different workloads"),
        ("a", 7.0, "a" * 64, "arrives"),
    ):
        other = write_recorded(tmp_path / folder / "vllm-0", "vllm", 0, [9.0, 9.0], gap_s=gap_s, sha256=digest)
        write_manifest(other, replace(read_manifest(other), modelled=("time",)))
        assert message in refused("compare", measured, tmp_path / folder)
    lone = write_recorded(tmp_path / "l" / "autellix-0", "autellix", 0, [9.0, 9.0], gap_s=1.0)
    write_manifest(lone, replace(read_manifest(lone), modelled=("time",)))
    assert "no load, policy and seed is both measured and modelled" in bench("compare", measured, tmp_path / "l").stderr
    for workload, message in (
        (Workload(name="w", sha256="a" * 64, jps=1.0, arrivals="constant"), "workload.arrivals differs"),
        (Workload(name="w", sha256="a" * 64, jps=1.0, more={"length_scale": 0.5}), "workload.length_scale differs"),
    ):
        path = measured.parent / "modelled" / "stock-0"
        for folder, facts in (
            (measured / "stock-0", replace(workload, arrivals="poisson", more={"length_scale": 0.3})),
            (path, workload),
        ):
            write_manifest(folder, replace(read_manifest(folder), workload=facts))
        assert message in refused("compare", measured / "stock-0", path)


def test_different_time_limits_are_said(tmp_path: Path) -> None:
    measured, modelled = write_both(tmp_path)
    assert "time_limit_s" not in succeeded("compare", measured, modelled).stderr
    for path in measured.iterdir():
        manifest = read_manifest(path)
        write_manifest(path, replace(manifest, workload=replace(manifest.workload, time_limit_s=60.0)))
    said = succeeded("compare", measured, modelled).stderr
    assert "note: workload.time_limit_s: measured 60.0, modelled none; the side with the lower limit finished" in said
