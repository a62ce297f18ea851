"""``analyze``, ``compare`` and ``report`` on recorded files, as typed by a user."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench
from continuum_traces.run_dir import EVENTS
from recorded_runs import write_recorded


def write_run(path: Path, policy: str, seed: int, slower: float, **workload: Any) -> None:
    """Four programs of two turns."""
    ends_s = [1 + 2 * slower * (1 + number + seed) for number in range(4)]
    write_recorded(path, policy, seed, ends_s, gap_s=1.0, turns=2, **workload)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    for seed in (0, 1):
        write_run(tmp_path / "e" / f"vllm-seed{seed}", "vllm", seed, 2.0)
        write_run(tmp_path / "e" / f"continuum-seed{seed}", "continuum", seed, 1.0)
    return tmp_path / "e"


def test_misses_as_a_table_and_as_json(experiment: Path) -> None:
    said = bench("analyze", experiment / "vllm-seed0", "--misses").stdout
    assert "no pins" in said
    assert "nothing held it" in said
    data = json.loads(bench("analyze", experiment / "vllm-seed0", "--json").stdout)
    (run,) = data.values()
    assert run["misses"][0]["cause"] == "no pins"
    assert run["misses"][0]["lost_tokens"] == 4 * 64
    assert run["throughput_jobs_per_hour_per_gpu"] == pytest.approx(1800 * run["throughput_jobs_per_s"])


def test_tables_in_every_form(experiment: Path, tmp_path: Path) -> None:
    for form in ("csv", "json", "latex", "markdown"):
        said = bench("compare", experiment, "--format", form).stdout
        assert "continuum" in said
        assert "measured" in said or form == "json"  # the manifests name nothing that is modelled
    file, parquet = tmp_path / "t.json", tmp_path / "t.parquet"
    bench("compare", experiment, "--format", "json", "--out", file)
    assert file.read_text() == bench("compare", experiment, "--json").stdout
    assert bench("analyze", experiment, "--table", "turns", "--format", "parquet", "--out", parquet).exit_code == 0
    assert parquet.stat().st_size > 0


def test_several_directories_are_one_experiment(experiment: Path, tmp_path: Path) -> None:
    for policy, slower in (("vllm", 2.0), ("continuum", 1.0)):
        write_run(tmp_path / "more" / policy, policy, 2, slower)
        write_run(tmp_path / "load" / policy, policy, 0, slower, jps=2.0)
    merged = json.loads(bench("compare", experiment, tmp_path / "more", "--json").stdout)
    assert merged["seeds"] == [0, 1, 2]
    loads = json.loads(bench("compare", experiment, tmp_path / "load", "--json").stdout)
    assert [each["jps"] for each in loads] == [1.0, 2.0]
    page = tmp_path / "joint.html"
    done = bench("report", experiment, tmp_path / "load", "--out", page)
    assert done.exit_code == 0, done.stderr
    assert "Completion time against load" in page.read_text()


def test_the_table_has_intervals_where_there_are_seeds_enough(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"vllm-seed{seed}", "vllm", seed, 2.0)
        write_run(tmp_path / f"continuum-seed{seed}", "continuum", seed, 1.0)
    caption, *table = bench("compare", tmp_path).stdout.splitlines()
    assert "programs at 1/s, m on 2 x g" in caption
    assert "in brackets: 95% intervals over seeds" in caption
    (row,) = [line for line in table if "continuum" in line and "." in line and "TTFT" not in line][:1]
    assert len(re.findall(r"[0-9.]+ \([0-9.]+ to [0-9.]+\)", row)) == 2  # the mean and the ratio


def refuse(constant: str) -> None:
    raise AssertionError(constant)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("base", "other"), [([0.0, 3.0], [1.0, 2.0]), ([1.0, 3.0], [0.0, 2.0]), ([0.0], [1.0]), ([1.0], [0.0])]
)
def test_programs_that_took_no_time(tmp_path: Path, seeds: int, base: list[float], other: list[float]) -> None:
    for seed in range(seeds):
        write_recorded(tmp_path / "e" / f"vllm-seed{seed}", "vllm", seed, base)
        write_recorded(tmp_path / "e" / f"continuum-seed{seed}", "continuum", seed, other)
    for arguments in (["compare"], ["compare", "--json"], ["report"]):
        done = bench(*arguments, tmp_path / "e")
        assert done.exit_code == 0, repr(done.exception)
        if "--json" in arguments:
            json.loads(done.stdout, parse_constant=refuse)


def test_images_of_every_figure(experiment: Path) -> None:
    done = bench("report", experiment, "--images")
    assert done.exit_code == 0, done.stderr
    names = {file.name for file in (experiment / "images").iterdir()}
    wanted = ["jct-cdf", "jct-by-policy", "misses", "tool-time-tails", "kv-occupancy"]
    assert {f"{name}.svg" for name in wanted} <= names


def test_a_baseline_is_asked_for_and_one_that_is_missing_is_an_error(experiment: Path) -> None:
    said = " ".join(bench("compare", experiment, "--baseline", "continuum").stdout.split())
    assert "JCT to continuum" in said
    assert "times as long as under continuum" in said


def test_a_table_for_programs_has_every_digit(tmp_path: Path) -> None:
    """A live server's instants are seconds since 1970."""
    write_run(tmp_path / "r", "vllm", 0, 1.0)
    lines = (tmp_path / "r" / EVENTS).read_text().splitlines()
    moved = [line.replace('"t":0.0,', '"t":1795352123.123456,') for line in lines]
    assert moved != lines
    (tmp_path / "r" / EVENTS).write_text("\n".join(moved) + "\n")
    table = bench("analyze", tmp_path / "r", "--table", "turns", "--format", "csv").stdout
    assert "1795352123.123456" in table


def test_tables_have_the_width_of_the_screen_and_names_are_whole(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, *lines = bench("analyze", experiment / "vllm-seed0").stdout.splitlines()  # below the path
    assert max(map(len, lines)) <= 80
    assert any("throughput_jobs_per_hour_per_gpu" in line for line in lines)


def preview_of(run: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True)
    assert bench("traces", "convert", run, target, "--to", "preview").exit_code == 0
    return target


def test_files_of_the_preview_are_compared_and_reported_as_runs_are(experiment: Path, tmp_path: Path) -> None:
    policies = ("vllm", "continuum")
    files = [preview_of(experiment / f"{name}-seed0", tmp_path / name / "scheduler_timestamps") for name in policies]
    native = json.loads(bench("compare", *(experiment / f"{name}-seed0" for name in policies), "--json").stdout)
    for given in (files, [file.parent for file in files]):
        found = json.loads(bench("compare", *given, "--json").stdout)
        assert (found["baseline"], tuple(found["policies"])) == ("vllm", policies)
        for name in ("jct_mean_s", "jct_p95_s", "jct_mean_ratio", "prefix_hit_ratio", "bubble_mean_s"):
            values = [each["policies"]["continuum"][name] for each in (found, native)]
            assert values[0] == pytest.approx(values[1])
        assert bench("report", given[0]).exit_code == 0
        assert (files[0].parent / "report.html").is_file()
    joint = tmp_path / "joint.html"
    assert bench("report", *files, "--out", joint).exit_code == 0
    assert "continuum" in joint.read_text()


def test_misses_say_what_the_records_cannot(experiment: Path, tmp_path: Path) -> None:
    file = preview_of(experiment / "vllm-seed0", tmp_path / "p" / "scheduler_timestamps")
    assert "does not say which tool a turn called" in bench("analyze", file, "--misses").stderr
    (experiment / "vllm-seed0" / EVENTS).unlink()
    (experiment / "vllm-seed0" / "engine.json").write_text("{}")
    said = bench("analyze", experiment / "vllm-seed0", "--misses").stderr
    assert "only the client's records are here" in said
    assert "--scheduler-records DIR" in said
