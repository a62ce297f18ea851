"""``analyze``, ``compare`` and ``report`` on recorded files, as typed by a user."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bench_cli import bench, succeeded
from continuum_traces.records.run_dir import EVENTS
from fake_server import FakeServer
from recorded_runs import write_recorded

from continuum_client import OpenAI


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


def test_tables_are_written_to_files(experiment: Path, tmp_path: Path) -> None:
    file, parquet = tmp_path / "t.json", tmp_path / "t.parquet"
    bench("compare", experiment, "--format", "json", "--out", file)
    assert file.read_text() == bench("compare", experiment, "--json").stdout
    done = bench("analyze", experiment, "--table", "turns", "--format", "parquet", "--out", parquet)
    if find_spec("pyarrow"):  # an environment for contributors may lack it
        assert pd.read_parquet(parquet).to_csv(index=False) == bench("analyze", experiment, "--table", "turns").stdout
    else:
        assert "pip install pyarrow" in done.stderr


def test_several_directories_are_one_experiment(experiment: Path, tmp_path: Path) -> None:
    for policy, slower in (("vllm", 2.0), ("continuum", 1.0)):
        write_run(tmp_path / "more" / policy, policy, 2, slower)
        write_run(tmp_path / "load" / policy, policy, 0, slower, jps=2.0)
    merged = json.loads(bench("compare", experiment, tmp_path / "more", "--json").stdout)
    assert merged["seeds"] == [0, 1, 2]
    loads = json.loads(bench("compare", experiment, tmp_path / "load", "--json").stdout)
    assert [each["jps"] for each in loads] == [1.0, 2.0]
    page = tmp_path / "joint.html"
    succeeded("report", experiment, tmp_path / "load", "--out", page)
    assert "Completion time against load" in page.read_text()


def test_closed_loops_are_compared_though_their_instants_differ(tmp_path: Path) -> None:
    for policy, gap_s in (("vllm", 1.0), ("other", 2.0)):
        write_recorded(tmp_path / policy, policy, 0, [2.0, 3.0], gap_s=gap_s, arrivals="concurrency:2", jps=None)
    compared = json.loads(succeeded("compare --json", tmp_path / "vllm", tmp_path / "other").stdout)
    assert compared["policies"]["other"]["jct_mean_ratio"] == 1.0


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("base", "other"), [([0.0, 3.0], [1.0, 2.0]), ([1.0, 3.0], [0.0, 2.0]), ([0.0], [1.0]), ([1.0], [0.0])]
)
def test_programs_that_took_no_time(tmp_path: Path, seeds: int, base: list[float], other: list[float]) -> None:
    for seed in range(seeds):
        write_recorded(tmp_path / "e" / f"vllm-seed{seed}", "vllm", seed, base)
        write_recorded(tmp_path / "e" / f"continuum-seed{seed}", "continuum", seed, other)
    for command in ("compare", "report"):
        succeeded(command, tmp_path / "e")
    said = succeeded("compare --json", tmp_path / "e").stdout
    json.loads(said, parse_constant=pytest.fail)  # no NaN


def test_images_of_every_figure(experiment: Path) -> None:
    succeeded("report", experiment, "--images")
    names = {file.name for file in (experiment / "images").iterdir()}
    wanted = ["jct-cdf", "jct-by-policy", "misses", "tool-time-tails", "kv-occupancy"]
    assert {f"{name}.svg" for name in wanted} <= names


def test_a_table_for_programs_has_every_digit(tmp_path: Path) -> None:
    """A live server's instants are seconds since 1970."""
    write_run(tmp_path / "r", "vllm", 0, 1.0)
    lines = (tmp_path / "r" / EVENTS).read_text().splitlines()
    moved = [line.replace('"t":0.0,', '"t":1795352123.123456,') for line in lines]
    assert moved != lines
    (tmp_path / "r" / EVENTS).write_text("\n".join(moved) + "\n")
    table = bench("analyze", tmp_path / "r", "--table", "turns", "--format", "csv").stdout
    assert "1795352123.123456" in table


def test_tables_have_the_width_of_the_screen(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, *lines = bench("analyze", experiment / "vllm-seed0").stdout.splitlines()  # below the path
    assert max(map(len, lines)) <= 80
    assert any("throughput_output_tokens_per_s_per_gpu" in line for line in lines)


def test_files_of_the_preview_and_of_servers_are_read_as_runs_are(experiment: Path, tmp_path: Path) -> None:
    """Server records have no manifests; each policy has a folder."""
    policies, previews = ("vllm", "continuum"), []
    for name in policies:
        run, folder = experiment / f"{name}-seed0", tmp_path / "servers" / name
        folder.mkdir(parents=True)
        shutil.copy(run / EVENTS, folder)
        previews.append(tmp_path / "previews" / name / "scheduler_timestamps")
        previews[-1].parent.mkdir(parents=True)
        succeeded("traces convert --to preview", run, previews[-1])
    succeeded("traces convert --to native", previews[0], tmp_path / "native")
    assert (tmp_path / "native" / EVENTS).exists()
    native = json.loads(succeeded("compare --json", *(experiment / f"{name}-seed0" for name in policies)).stdout)
    folders = [tmp_path / name for name in ("servers", "previews")]
    for given in (previews, [folders[0] / name for name in policies], *([folder] for folder in folders)):
        found = json.loads(succeeded("compare --json --baseline vllm", *given).stdout)
        assert (found["baseline"], set(found["policies"])) == ("vllm", set(policies))
        for name in ("jct_mean_s", "jct_p95_s", "jct_mean_ratio", "prefix_hit_ratio", "bubble_mean_s"):
            values = [each["policies"]["continuum"][name] for each in (found, native)]
            assert values[0] == pytest.approx(values[1])
        assert len(json.loads(succeeded("analyze --json", *given).stdout)) == 2
        succeeded("report", given[0])
    assert all(page.is_file() for page in (previews[0].parent / "report.html", tmp_path / "servers" / "report.html"))
    assert "does not say which tool a turn called" in bench("analyze --misses", previews[0]).stderr
    title = succeeded("compare", folders[0], "--by", "key").stdout.splitlines()[0]
    assert title == f"{folders[0]}, key other"  # the record says nothing of the workload


def test_misses_say_what_the_records_cannot(experiment: Path) -> None:
    (experiment / "vllm-seed0" / EVENTS).unlink()
    (experiment / "vllm-seed0" / "engine.json").write_text("{}")
    said = bench("analyze", experiment / "vllm-seed0", "--misses").stderr
    assert "only the client's records are here" in said
    assert "--scheduler-records DIR" in said


def test_what_a_client_recorded_is_a_run_that_is_compared_under_its_own_name(tmp_path: Path) -> None:
    hello = [{"role": "user", "content": "hi"}]
    with FakeServer("vllm") as server:
        for name in ("before", "after"):
            with OpenAI(base_url=server.url, api_key="k", record=tmp_path / name) as client, client.program("p"):
                for more in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
                    list(client.chat.completions.create(**{"model": "m", "messages": hello, **more}))
    analyzed = succeeded("analyze", tmp_path / "before")
    assert "cut short" not in analyzed.output
    (without,) = [line for line in analyzed.stderr.splitlines() if "no value in this run" in line]
    assert "pin_hit_ratio" in without
    assert "first tokens, and what follows from them: known of 1 of 2 turns" in analyzed.stderr
    assert not any("pin_hit_ratio" in line or "-" in line.split()[2:3] for line in analyzed.stdout.splitlines())
    compared = json.loads(succeeded("compare --json", tmp_path / "before", tmp_path / "after").stdout)
    assert {*compared["policies"]} == {"before", "after"}
    succeeded("report", tmp_path / "before", "--out", tmp_path / "page.html")
