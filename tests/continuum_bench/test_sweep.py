"""Sweeps: grids and their mistakes, cells that are whole or not there, resuming after a kill, goodput's search."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from bench_cli import bench, small_trace, succeeded
from continuum_analysis.compare.intervals import mean_interval
from continuum_analysis.metrics import analyze_run
from continuum_analysis.sweep.goodput import Bracket, goodput_table, summarize_goodput
from continuum_bench.options.run import DEFAULT_POLICIES
from continuum_bench.progress import RunsDisplay
from continuum_bench.sweep.goodput import FARTHEST, Search, _is_sustained
from continuum_bench.sweep.grid import grid_of, read_grid
from continuum_bench.sweep.on_servers import config_of
from continuum_bench.sweep.plan import plan
from continuum_bench.sweep.predict import predicted_cells, with_profiles
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Report
from continuum_server.step_times.profile import DecodePoint, PrefillPoint, make_profile, write_profile
from continuum_traces.json_io import RunDirError
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records.run_dir import EVENTS, TURNS
from continuum_traces.schema import Program, Turn
from ctrl_c import interrupted
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import flags_in, verdict_in

CELLS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of four cells beside its trace of six small programs."""
    path = tmp_path_factory.mktemp("grid")
    small_trace(path / "small.jsonl")
    (path / "grid.yaml").write_text(
        "name: small\npolicy: [vllm, continuum]\njps: [0.5, 2]\nkv_blocks: 1200\nworkload: small.jsonl\n"
    )
    return path


@pytest.fixture(scope="module")
def swept(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "small"
    done = succeeded("sweep", folder / "grid.yaml", "--out", out)
    assert f"\n{verdict_in((out / 'report.html').read_text())}\n" in done.stdout
    return out


def test_a_grid_is_the_product_of_its_axes(tmp_path: Path) -> None:
    cases = [{"jps": [0.1, 1]}, {"jps": 2, "chunk_tokens": [512, 1024], "policy": "vllm", "seeds": 1}]
    policies = ["vllm", {"policy": "static-ttl", "options": {"ttl_s": 2}}, "continuum+offload"]
    raw = {"policy": policies, "seed": [3, 5], "cases": cases}
    grid = grid_of(raw, "here", Path(), "g")
    points = [(point.options.jps, point.options.chunk_tokens) for point in grid.points]
    assert points == [(0.1, 2048), (1.0, 2048), (2.0, 512), (2.0, 1024)]
    assert [arm.label for arm in grid.points[0].arms] == ["vllm", "static-ttl(ttl_s=2.0)", "continuum+offload"]
    assert grid.points[0].arms[1].options == {"ttl_s": 2.0}
    assert grid.points[0].seeds == (3, 5)
    (tmp_path / "grid.yaml").write_text("hints: tool_s\nhint_error: [0, 0.5]\njps: 9\n")
    grid = read_grid(tmp_path / "grid.yaml", ["jps=4", "num_programs=2"])
    assert [(point.options.jps, point.options.hint_error) for point in grid.points] == [(4.0, "0"), (4.0, "0.5")]
    assert tuple(arm.policy for arm in grid.points[0].arms) == DEFAULT_POLICIES
    grid = grid_of(raw, "here", Path(), "g", ["jps=4", "seed=7"])
    assert {(point.options.jps, point.seeds) for point in grid.points} == {(4.0, (7,))}  # in every case too


def test_the_grid_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sweeps.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    grid = grid_of(yaml.safe_load(text), "sweeps.md", Path(), "g")
    cells = sum(len(point.arms) * len(point.seeds) for point in grid.points)
    assert (grid.name, len(grid.points), cells) == ("a100", 7, 63)


def test_a_sweep_is_a_folder_of_runs_with_tables_and_plots(swept: Path) -> None:
    frame = pd.read_csv(swept / "sweep.csv")
    assert len(frame) == CELLS
    for _, row in frame.iterrows():
        (cell,) = swept.glob(f"small-jps{row['jps']:g}-*/{row['policy']}-seed{row['seed']}")
        assert row["jct_mean_s"] == pytest.approx(analyze_run(cell).values["jct_mean_s"], rel=1e-5)
        assert row["programs_finished"] == 6
    groups = json.loads((swept / "summary.json").read_text())["groups"]
    assert [group["axes"]["jps"] for group in groups] == [0.5, 2.0]
    assert groups[1]["policies"]["continuum"]["jct_mean_ratio"] > 0
    page = (swept / "report.html").read_text()
    ran = "small (recorded), 6 programs at 0.5, 2/s, llama-3.1-8b on 1 x h100-80gb"
    assert all(said in page for said in ("<svg class='plot'", ran, "on average over 2 points of the grid"))
    places = [page.index(each) for each in ("<h1>", 'class="verdict"', 'class="trust"', "<svg", "<h2>All numbers")]
    assert (places, flags_in(page)) == (sorted(places), [])
    assert "continuum" in (swept / "sweep.svg").read_text()
    assert not (swept / ".partial").exists()


def test_every_command_reads_a_sweep_and_its_groups(swept: Path, tmp_path: Path) -> None:
    swept = shutil.copytree(swept, tmp_path / "sweep")
    compared = json.loads(bench("compare", next(swept.glob("small-jps2-*")), "--json").stdout)
    whole = json.loads((swept / "summary.json").read_text())["groups"][1]
    assert compared["policies"]["vllm"]["jct_mean_s"] == whole["policies"]["vllm"]["jct_mean_s"]
    assert len(json.loads(bench("analyze", swept, "--json").stdout)) == CELLS
    assert json.loads(bench("compare", swept, "--json").stdout)[1]["jps"] == 2.0
    before = (swept / "sweep.svg").read_bytes()
    images = bench("report", swept, "--images", "--baseline", "continuum")
    assert images.stderr.endswith(f"images: sweep.svg in {swept}\n"), images.stderr
    groups = json.loads((swept / "summary.json").read_text())["groups"]
    assert {group["baseline"] for group in groups} == {"continuum"}
    assert f"report: {swept / 'report.html'}" in bench("report", swept).stderr
    assert (swept / "sweep.svg").read_bytes() == before


@pytest.mark.parametrize("name", ["../x", "9" * 400, "\0", 5])
def test_a_plan_opens_no_other_files(swept: Path, tmp_path: Path, name: Any) -> None:
    copied = shutil.copytree(swept, tmp_path / "sweep")
    plan = json.loads((copied / "sweep.json").read_text())
    plan["groups"][0]["folder"] = plan["groups"][1]["cells"][0]["name"] = name
    (copied / "sweep.json").write_text(json.dumps(plan))
    for command in ("analyze", "report"):
        done = bench(command, copied)
        assert (done.exit_code, "Traceback" in done.stderr) == (2 if name == 5 else 0, False), done.output
        assert isinstance(done.exception, SystemExit | None), repr(done.exception)


def test_a_changed_grid_adds_cells_and_keeps_the_others(swept: Path, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.glob("*/*/engine.json")}
    done = succeeded("sweep", folder / "grid.yaml", "--out", swept, "--set", "jps=0.5,2,4", "--set", "policy=vllm")
    assert "3 cells, 2 done before, 1 to play" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(pd.read_csv(swept / "sweep.csv")) == 3  # continuum's cells are there and in no table
    again = bench("sweep", folder / "grid.yaml", "--out", swept)
    assert "4 cells, 4 done before, 0 to play" in again.stderr
    assert len(pd.read_csv(swept / "sweep.csv")) == CELLS


def names(raw: dict[str, Any], folder: Path = Path()) -> list[str]:
    return [cell.name for cell in plan(grid_of({"policy": "vllm", "num_programs": 2, **raw}, "here", folder, "g"))]


def test_everything_that_decides_a_result_is_in_a_cells_name(folder: Path, tmp_path: Path) -> None:
    """Another trace of the same name too. A default that is given changes nothing."""
    specs = ["recorded", "constant:30", "bimodal:0.8:0.5:60", "shift:10", "hang:0.15"]
    assert len(set(names({"tool_times": specs}))) == len(specs)
    assert names({"tool_times": "recorded"}) == names({})
    write_programs(tmp_path / "small.jsonl", [Program("p", (Turn(3000, 60),))])
    trace = {"workload": "small.jsonl"}
    assert names(trace, tmp_path) != names(trace, folder)


def test_cases_that_meet_in_a_point_are_played_once() -> None:
    cases: list[Any] = [{"turn_scale": [1, 2]}, {"jps": 0.13, "policy": "continuum"}]
    met = names({"cases": cases})
    assert len(met) == len(set(met)) == 3
    assert names({"cases": [*cases, {"turn_scale": 2}]}) == met


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_has_no_half_cell_and_the_same_command_goes_on(how: int, folder: Path, tmp_path: Path) -> None:
    grid = ["--out", str(tmp_path), "--set", "jps=0.5", "--jobs", "1"]
    code, rest = interrupted(["sweep", str(folder / "grid.yaml"), *grid, "--set", "seeds=60"], "2 of", how)
    assert (code, "goes on from there" in rest) == ((130, True) if how == signal.SIGINT else (-how, False))
    assert "Traceback" not in rest
    whole = [path.parent for path in tmp_path.glob("*/*/engine.json")]
    assert 2 <= len(whole) < 120
    assert {path.parent for path in tmp_path.glob("small*/*/turns.jsonl")} == set(whole)
    assert {analyze_run(cell).values["programs_finished"] for cell in whole} == {6}
    if how == signal.SIGINT:
        assert len(pd.read_csv(tmp_path / "sweep.csv")) == len(whole)
    again = succeeded("sweep", folder / "grid.yaml", *grid)
    assert "2 cells, 2 done before, 0 to play" in again.stderr
    assert len(pd.read_csv(tmp_path / "sweep.csv")) == 2
    assert not (tmp_path / ".partial").exists()


def test_a_cell_that_is_not_whole_is_not_kept(swept: Path, folder: Path, tmp_path: Path) -> None:
    store = SweepStore(tmp_path / "out")
    cell = plan(read_grid(folder / "grid.yaml"))[0]
    with store.locked():
        played = store.begin(cell)
        with pytest.raises(RunDirError, match=r"engine\.json: cannot read"):
            store.complete(cell, played)
        for name in ("engine.json", EVENTS, TURNS):
            shutil.copy(swept / cell.name / name, played)
        turns = (played / TURNS).read_bytes()
        (played / TURNS).write_bytes(turns[:-1])
        with pytest.raises(RunDirError, match="17 of 18 turns were recorded"):
            store.complete(cell, played)
        assert not store.is_done(cell)
        (played / TURNS).write_bytes(turns)
        store.complete(cell, played)
        assert store.is_done(cell)


@pytest.mark.slow
def test_a_failed_cell_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--set", "kv_blocks=100,1200", "--set", "jps=0.5", "--set", "seeds=1", "--out", out)
    done = bench("sweep", folder / "grid.yaml", *arguments)
    assert done.exit_code == 1
    assert "do not fit the KV pool" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((out / "failed").glob("*.log"))) == 2
    frame = pd.read_csv(out / "sweep.csv")
    assert list(frame["kv_blocks"]) == [1200, 1200]
    assert "2 of 2 cells are missing" in done.stderr


def test_the_time_left_is_guessed_from_the_work_that_is_done() -> None:
    costs = {f"cell {number}": 3.0 for number in range(8)}
    first, second, *_ = costs
    now = [0.0]
    with RunsDisplay(costs, 3, quiet=True, what="cells", clock=lambda: now[0]) as display:
        assert display.summary() == "3 of 11 cells"
        display.update(Report(first))
        now[0] = 15.0
        assert display.left_s() is None
        display.update(Report(first, programs_done=10, programs_total=20))
        assert display.left_s() == pytest.approx(225.0)  # half of the first in 15 s: the rest takes 15 times as long
        now[0] = 30.0
        display.update(Report(first, state="done"))
        assert display.summary() == "4 of 11 cells, about 4 min left"  # seven more of 30 s each
        display.update(Report(second, state="failed", error="no"))
        assert display.left_s() == pytest.approx(90.0)  # six more, as if the second had been played


def test_a_line_says_how_far_the_runs_are_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    now, said = [0.0], ""
    with RunsDisplay({"a": 1.0, "b": 1.0}, 0, quiet=False, clock=lambda: now[0], every_s=0.01) as display:
        display.update(Report("a", 0, 100, in_flight=1))
        assert display.line() == "a: 0 of 100 programs, 1 in flight, none failed; 0 of 2 runs"
        now[0] = 50.0
        display.update(Report("a", 20, 100, in_flight=7, programs_failed=2))
        line = "a: 20 of 100 programs, 0.4/s, 7 in flight, 2 failed; 0 of 2 runs, about 8 min left"
        assert display.line() == line
        while line not in said:
            said += capsys.readouterr().err
        display.update(Report("b", 1, 100))
        assert display.line() == "0 of 2 runs, about 7 min left, 2 running"
    with RunsDisplay({"a": 1.0}, 0, quiet=True, every_s=0.01) as display:
        display.update(Report("a", 0, 100))
    assert not capsys.readouterr().err.endswith("100 programs; 0 of 1 runs\n")


def searched(start: float, sustains: Callable[[float], bool]) -> tuple[Search, list[float]]:
    """A search that has ended, and the rates it tried."""
    search, tried = Search(start, 0.1), []
    while not search.ended:
        tried.append(search.jps)
        search.tell(sustains(search.jps))
    return search, tried


@given(st.floats(0.02, 50.0), st.floats(0.01, 99.0))
def test_the_search_brackets_the_limit(start: float, knee: float) -> None:
    """Rates up to ``knee`` times the first are sustained, or all, or none."""
    search, tried = searched(start, lambda jps: jps <= knee * start)
    assert {search.low, search.high} <= {*tried, 0.0, inf}
    assert search.low <= knee * start < search.high
    if 1 / 5 < knee < 5:  # beyond, the next rate may be farther away than FARTHEST
        assert search.high <= search.low * 1.101
    assert len(tried) <= 16
    for end, rates in ((True, "low"), (False, "high")):
        search, tried = searched(start, lambda jps, end=end: end)  # type: ignore[misc]
        assert getattr(search, rates) == (max if end else min)(tried)
        assert all(start / FARTHEST <= jps <= start * FARTHEST for jps in tried)
        assert (search.low > 0, search.high < inf) == (end, not end)


@pytest.mark.parametrize(
    ("slowdown", "growth", "limit", "sustained"),
    [(3.0, 0.0, 3.0, True), (3.001, 0.0, 3.0, False), (1.0, 0.2, 3.0, False), (None, 0.0, inf, True)],
)
def test_a_rate_is_sustained_within_the_limit(
    slowdown: float | None, growth: float, limit: float, sustained: bool
) -> None:
    values = {"slowdown_p95": slowdown, "backlog_growth": growth, "queued_share": 0.5, "slowdown_mean": None}
    assert _is_sustained(values, limit) == sustained


def test_goodput_is_paired_by_seed() -> None:
    def exact(gpu: str, policy: str, seed: int, jps: float) -> Bracket:
        return Bracket({"gpu": gpu}, policy, seed, jps, 1.1 * jps or 0.1)

    brackets = [exact("a", "vllm", s, r) for s, r in ((0, 1.0), (1, 1.1))]
    brackets += [exact("a", "continuum", s, r) for s, r in ((0, 3.0), (1, 3.3))]
    brackets += [exact("a", "static-ttl", 0, 3.0), Bracket({"gpu": "a"}, "static-ttl", 1, 64.0, inf)]
    brackets += [exact("b", "vllm", 0, 0.0), exact("b", "continuum", 0, 3.0)]
    vllm, continuum, static, zero, over_zero = rows = summarize_goodput(brackets)
    assert vllm.jps == mean_interval([1.0, 1.1])
    assert continuum.to_vllm is not None
    assert continuum.to_vllm.mean == pytest.approx(3.0)
    assert continuum.to_vllm.seeds == pytest.approx((3.0, 3.0))
    assert (static.jps, static.to_vllm, over_zero.to_vllm) == (None, None, None)
    assert [row[-1] for row in goodput_table([zero, over_zero]).rows] == ["-", "-"]
    assert goodput_table(rows).rows[2][2:] == ["no upper end found", "3; at least 64", "-"]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, inf, "no rate sustained yet"),
        (0.5, inf, "at least 0.5"),
        (0.5, 0.7, "at least 0.5, below 0.7"),
        (0.0, 0.7, "no rate sustained yet, below 0.7"),
    ],
)
def test_a_search_that_was_cut_short_says_what_it_knows(low: float, high: float, text: str) -> None:
    cut = Bracket({}, "vllm", 0, low, high, complete=False)
    (row,) = summarize_goodput([cut])
    assert (cut.text, row.jps, row.by_seed) == (text, None, (inf,))


@pytest.mark.slow
def test_on_ray_the_same_bytes(folder: Path, swept: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "ray"
    command = ["sweep", str(folder / "grid.yaml"), "--ray-address", "local", "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "continuum_bench", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = [path.relative_to(out) for path in out.glob("*/*/turns.jsonl")]
    assert len(cells) == 4
    for cell in cells:
        assert (out / cell).read_bytes() == (swept / cell).read_bytes()


def test_a_live_cell_gives_its_server_what_the_grid_says(folder: Path) -> None:
    (folder / "gpu.yaml").write_text("policy: vllm\nworkload: small.jsonl\nengine: gpu\ntp: 2\nblock_size: 32\n")
    (cell,) = plan(read_grid(folder / "gpu.yaml"))
    config = config_of(cell, "gpu", {"model": "m"}, None)
    assert (config.gpus, config.block_size, config.model) == (2, 32, "m")
    assert (config.gpus, config.gpu_memory_utilization, config.vllm_arguments) == (2, 0.9, ())


@pytest.mark.parametrize(
    ("engine", "model", "serves"),
    [
        ("cpu", "", None),  # the engine's own: no name of a modelled GPU's model reaches vLLM
        ("cpu", "model: random-25m\n", "random-25m"),
        ("cpu", "model: someone/small\n", "someone/small"),
        ("gpu", "model: someone/large\n", "someone/large"),
        ("emulated", "", "llama-3.1-8b"),
        ("emulated", "model: qwen3-32b\n", "qwen3-32b"),
    ],
)
def test_a_server_of_a_sweep_gets_the_grid_s_model(folder: Path, engine: str, model: str, serves: str | None) -> None:
    (folder / "m.yaml").write_text(f"policy: stock\nworkload: small.jsonl\nengine: {engine}\n{model}")
    (cell,) = plan(read_grid(folder / "m.yaml"))
    config = config_of(cell, engine, {}, None)
    assert (config.model, config.policy, config.profile) == (serves, "stock", None)


def test_repeats_are_interleaved(folder: Path) -> None:
    """All policies have their turn, at every point, before the next repeat begins."""
    text = "engine: emulated\nworkload: small.jsonl\npolicy: [stock, continuum]\njps: [1, 2]\nseeds: 2\nrepeats: 2\n"
    (folder / "r.yaml").write_text(text)
    cells = plan(read_grid(folder / "r.yaml"))
    played = [
        (cell.seed, cell.group.point.axes["repeat"], cell.group.point.axes["jps"], cell.arm.label) for cell in cells
    ]
    assert played == [
        (seed, repeat, jps, policy)
        for seed in (0, 1)
        for repeat in (1, 2)
        for jps in (1, 2)
        for policy in ("stock", "continuum")
    ]
    assert len({cell.name for cell in cells}) == 16


def test_a_live_cell_s_name_depends_on_versions_and_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "d.yaml").write_text("engine: cpu\nworkload: small.jsonl\npolicy: stock\n")

    def name() -> str:
        return plan(read_grid(folder / "d.yaml"))[0].name

    before = name()
    assert name() == before
    for what in ("machine", "check_version"):
        with monkeypatch.context() as patched:
            patched.setattr(f"continuum_bench.sweep.plan.{what}", lambda: "other")
            assert name() != before


def test_predictions_are_one_virtual_cell_for_all_repeats(folder: Path, tmp_path: Path) -> None:
    text = "engine: cpu\nworkload: small.jsonl\npolicy: [stock, working-set]\nkv_blocks: 90\nrepeats: 2\n"
    (folder / "p.yaml").write_text(text + "model: random-25m\n")
    grid = with_profiles(read_grid(folder / "p.yaml"), tmp_path)
    cells = plan(grid)
    (path,) = {cell.group.point.options.profile for cell in cells}
    assert path is not None
    prefill = [PrefillPoint(n, 1e-4 * n) for n in (128, 1024, 8192)]
    decode = [DecodePoint(n, c, 0.01) for n, c in ((1, 512), (4, 512), (1, 4096))]
    sizes = {"kv_tokens": 500_000, "block_size": 32}
    write_profile(path, make_profile("a server", "random-25m", "now", prefill, decode, **sizes))
    predicted = predicted_cells(cells, grid)
    assert [(cell.arm.label, cell.seed) for cell in predicted] == [("vllm", 0), ("working-set", 0)]
    (group,) = {cell.group.folder: cell.group for cell in predicted}.values()
    manifest = group.manifest(predicted[0].arm, 0)
    assert "repeat" not in group.point.axes
    assert manifest.hardware.kv_capacity is not None
    assert (manifest.hardware.kv_capacity.num_blocks, manifest.hardware.kv_capacity.tokens) == (90, 90 * 32)
    assert (manifest.engine_options.more["model"], manifest.hardware.model) == ("random-25m", "random-25m")
    assert [config_of(cell, "cpu", {}, None).profile for cell in cells[:2]] == [None, path]  # stock has no plugin


@pytest.mark.slow
def test_measured_beside_predicted_and_resumed(folder: Path, tmp_path: Path) -> None:
    """One command, on the engine that rehearses a GPU; the same again plays nothing and shows the same."""
    axes = "--set engine=emulated --set policy=stock,working-set --set jps=4 --set kv_blocks=1200 --set repeats=2"
    command = f"sweep {axes} --predict --out {tmp_path / 'out'} --set workload={folder / 'small.jsonl'}"
    done = succeeded(command)
    assert "Servers (measured) beside the virtual engine with a profile (modelled)" in done.stdout
    assert done.stderr.index("into " + str(tmp_path / "out" / "predicted")) < done.stderr.index(
        "4 cells, 0 done before"
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [group["axes"]["repeat"] for group in summary["groups"]] == [1, 2]
    for group in summary["groups"]:
        rows = group["predictions"]
        assert [row["policy"] for row in rows] == ["vllm", "working-set"]
        assert all(row["measured"]["prefix_hit_ratio"] > 0 for row in rows)
    assert len({group["predictions"][0]["modelled"]["jct_mean_s"] for group in summary["groups"]}) == 1
    assert "Measured beside modelled" in (tmp_path / "out" / "report.html").read_text()
    again = succeeded(command)
    assert "a server with stock vLLM starts" not in again.stderr
    assert again.stderr.count("0 to play") == 2


@pytest.mark.slow
def test_live_cells_start_and_stop_their_servers(folder: Path, tmp_path: Path) -> None:
    out, grid = tmp_path / "live", folder / "live.yaml"
    text = "policy: continuum\njps: 4\nkv_blocks: 1200\nworkload: small.jsonl\nengine: emulated\n"
    grid.write_text(text + "serve: {max_model_len: 8192}\n")
    succeeded("sweep", grid, "--out", out)
    assert list(pd.read_csv(out / "sweep.csv")["programs_finished"]) == [6]
    assert "0 to play" in bench("sweep", grid, "--out", out).stderr
    grid.write_text(text + "serve: {vllm_arguments: [--nonsense]}\n")
    failed = bench("sweep", grid, "--out", tmp_path / "refused")
    assert failed.exit_code == 1
    (log,) = (tmp_path / "refused" / "failed").glob("*.log")
    assert f"status 2: unrecognized arguments: --nonsense (details in {log})" in failed.stderr
    assert "unrecognized arguments: --nonsense" in log.read_text()
