"""``analyze``, ``compare`` and ``report`` on recorded files, as typed by a user."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bench_cli import bench
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Hardware, KvPool, Manifest, SchedulerEvent, TurnRecord, Workload
from recorded_runs import write_recorded

E = SchedulerEvent


def write_run(path: Path, policy: str, seed: int, slower: float, jps: float = 1.0, sha256: str = "a" * 64) -> None:
    path.mkdir(parents=True)
    workload = Workload(name="w", sha256=sha256, jps=jps)
    hardware = Hardware(gpu="g", tensor_parallel=2, kv_capacity=KvPool(tokens=1000))
    write_manifest(path, Manifest(policy=policy, seed=seed, engine="virtual", workload=workload, hardware=hardware))
    events, records = [], []
    for number in range(4):
        name, t = f"p{number}", float(number)
        for index in (0, 1):
            end = t + slower * (1 + number + seed)
            events.append(E(t, "arrive", name, index, prompt_tokens=64 + index))
            events.append(E(t, "start", name, index, prompt_tokens=64 + index, hit_tokens=0))
            events.append(E(end, "finish", name, index, output_tokens=2, status="stop", tool="ls"))
            records.append(TurnRecord(name, index, t, t, is_last=index == 1))
            t = end + 1
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", {})


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
        done = bench("compare", experiment, "--format", form)
        if form != "json":
            assert "measured" in done.stdout  # the manifests name nothing that is modelled
        assert done.exit_code == 0, done.stderr
        assert "continuum" in done.stdout
    file = tmp_path / "t.json"
    bench("compare", experiment, "--format", "json", "--out", file)
    assert file.read_text() == bench("compare", experiment, "--json").stdout
    parquet = tmp_path / "t.parquet"
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
    assert "programs at 1/s, 2 x g" in caption
    assert "in brackets: 95% intervals over seeds" in caption
    (row,) = [line for line in table if "continuum" in line and "." in line and "TTFT" not in line][:1]
    assert len(re.findall(r"[0-9.]+ \([0-9.]+ to [0-9.]+\)", row)) == 2  # the mean and the ratio


def test_other_programs_are_not_compared(experiment: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "other" / "continuum", "continuum", 0, 1.0, sha256="b" * 64)
    done = bench("compare", experiment, tmp_path / "other")
    assert done.exit_code == 2
    assert "played different workloads (sha256 aaaaaaaaaaaa against bbbbbbbbbbbb)" in done.stderr


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
    at = 1_795_352_123.123456
    moved = [json.dumps({**row, "t": row["t"] + at}) if "t" in (row := json.loads(line)) else line for line in lines]
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
    files = [
        preview_of(experiment / f"{policy}-seed0", tmp_path / policy / "scheduler_timestamps")
        for policy in ("vllm", "continuum")
    ]
    native = json.loads(bench("compare", *(experiment / f"{p}-seed0" for p in ("vllm", "continuum")), "--json").stdout)
    for given in (files, [file.parent for file in files]):
        done = bench("compare", *given, "--json")
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["baseline"], list(found["policies"])) == ("vllm", ["vllm", "continuum"])
        for name in ("jct_mean_s", "jct_p95_s", "jct_mean_ratio", "prefix_hit_ratio", "bubble_mean_s"):
            values = [each["policies"]["continuum"][name] for each in (found, native)]
            assert values[0] == pytest.approx(values[1])
    for given, page in ((files[0], "report.html"), (files[1].parent, "report.html")):
        done = bench("report", given)
        assert done.exit_code == 0, done.stderr
        assert (files[0].parent / page).is_file()
    joint = tmp_path / "joint.html"
    assert bench("report", *files, "--out", joint).exit_code == 0
    assert "continuum" in joint.read_text()


def test_misses_say_what_the_records_cannot(experiment: Path, tmp_path: Path) -> None:
    file = preview_of(experiment / "vllm-seed0", tmp_path / "p" / "scheduler_timestamps")
    assert "does not say which tool a turn called" in bench("analyze", file, "--misses").stderr
    (experiment / "vllm-seed0" / EVENTS).unlink()
    said = bench("analyze", experiment / "vllm-seed0", "--misses").stderr
    assert "only the client's records are here" in said
    assert "--scheduler-records DIR" in said
