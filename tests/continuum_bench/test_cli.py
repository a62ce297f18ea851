"""The command line as a user meets it: results, files, and one clear line for each mistake."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from continuum_bench.cli import app
from continuum_bench.doctor import _python
from continuum_traces.jsonl import read_programs, write_programs
from continuum_traces.schema import Program, ToolCall, Turn
from ctrl_c import interrupted
from typer.main import get_command
from typer.testing import CliRunner

runner = CliRunner()


def bench(*arguments: object) -> Result:
    """A command in this process; runs still get processes of their own."""
    return runner.invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The error of a command that must fail as a user's mistake."""
    done = bench(*arguments)
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six small programs."""
    call = (ToolCall("ls", 0.5),)
    made = [
        Program(f"p{i}", (Turn(3000, 60, tool_calls=call), Turn(800, 40, tool_calls=call), Turn(10, 5)))
        for i in range(6)
    ]
    path = tmp_path_factory.mktemp("trace") / "small.jsonl.gz"
    write_programs(path, made)
    return path


@pytest.fixture(scope="module")
def experiment(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "experiment"
    done = bench("replay", trace, "--jps", 2, "--kv-blocks", 1200, "--seeds", 2, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert "JCT to vllm" in done.stdout
    assert f"report: {out / 'report.html'}" in done.stderr
    assert "9 of 10 runs, about " in done.stderr  # and the time left
    assert "10 of 10 runs" in done.stderr
    return out


def test_an_experiment_is_complete_in_itself(experiment: Path) -> None:
    summary = json.loads((experiment / "summary.json").read_text())
    assert list(summary["policies"]) == ["vllm", "program-fcfs", "static-ttl", "continuum", "working-set"]
    wanted = "jct_mean_s jct_p50_s jct_p90_s jct_p95_s jct_p99_s throughput_jobs_per_s bubble_mean_s prefix_hit_ratio"
    for row in summary["policies"].values():
        assert all(row[name] is not None for name in wanted.split())
        assert row["programs_finished"] == 6
        assert "pin_hit_ratio" in row
        assert "jct_mean_ratio" in row
    manifest = summary["manifest"]
    assert manifest["workload"]["sha256"]
    assert manifest["hardware"]["step_times"]["kind"] == "measured-table"
    assert manifest["versions"]["vllm"]
    assert manifest["modelled"]
    assert (experiment / "summary.csv").exists()
    assert (experiment / "report.html").exists()
    assert len(list(experiment.glob("*/scheduler_timestamps.jsonl"))) == 10


def test_equal_commands_write_equal_bytes(trace: Path, experiment: Path, tmp_path: Path) -> None:
    done = bench("replay", trace, "--jps", 2, "--kv-blocks", 1200, "--policy", "continuum", "--out", tmp_path / "again")
    assert done.exit_code == 0, done.stderr
    files = {file.name: file for file in (tmp_path / "again" / "continuum-seed0").iterdir()}
    assert {"scheduler_timestamps.jsonl", "turns.jsonl", "engine.json", "tool_statistics.json"} <= set(files)
    for name in set(files) - {"scheduler_time.json", "manifest.json", "engine.log"}:
        assert files[name].read_bytes() == (experiment / "continuum-seed0" / name).read_bytes(), name


def test_what_the_scheduler_took_is_measured(experiment: Path) -> None:
    engine = json.loads((experiment / "continuum-seed0" / "engine.json").read_text())
    took = json.loads((experiment / "continuum-seed0" / "scheduler_time.json").read_text())
    assert took["calls"] == engine["scheduler_calls"]
    assert 0 < took["total_s"] / took["calls"] <= took["longest_s"] <= took["total_s"]
    row = json.loads((experiment / "summary.json").read_text())["policies"]["continuum"]
    assert 0 < row["scheduler_time_per_call_s"] <= row["scheduler_time_longest_s"]


def test_reading_a_finished_experiment(experiment: Path) -> None:
    analysis = json.loads(bench("analyze", experiment, "--json").stdout)
    assert len(analysis) == 10
    compared = json.loads(bench("compare", experiment, "--json").stdout)
    assert compared["policies"]["vllm"]["jct_mean_ratio"] == 1.0
    assert bench("report", experiment).exit_code == 0
    assert "jct_mean_s" in bench("analyze", experiment / "vllm-seed0").stdout


def test_scheduler_timestamps_both_ways(experiment: Path, tmp_path: Path) -> None:
    preview = tmp_path / "scheduler_timestamps"
    done = bench(
        "traces", "convert", experiment / "vllm-seed0" / "scheduler_timestamps.jsonl", preview, "--to", "preview"
    )
    assert done.exit_code == 0, done.stderr
    theirs = json.loads(bench("analyze", tmp_path, "--json").stdout)[str(tmp_path)]
    ours = json.loads(bench("analyze", experiment / "vllm-seed0", "--json").stdout)[str(experiment / "vllm-seed0")]
    for name in ("bubble_mean_s", "requeue_mean_s", "prefix_hit_ratio"):
        assert theirs[name] == pytest.approx(ours[name])
    assert bench("traces", "convert", preview, tmp_path / "native", "--to", "native").exit_code == 0
    assert (tmp_path / "native" / "scheduler_timestamps.jsonl").exists()


def test_json_output_is_json_alone(trace: Path, tmp_path: Path) -> None:
    done = bench(
        "replay",
        trace,
        "--jps",
        2,
        "--num-programs",
        9,
        "--policy",
        "vllm",
        "--no-report",
        "--json",
        "--out",
        tmp_path / "r",
    )
    summary = json.loads(done.stdout)
    assert summary["policies"]["vllm"]["programs_finished"] == 9  # six programs, three of them twice
    assert summary["manifest"]["notes"] == ["programs are repeated with fresh tokens"]
    assert not (tmp_path / "r" / "report.html").exists()


def test_policy_options_reach_the_policy(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    done = bench(
        "replay",
        trace,
        "--policy",
        "static-ttl",
        "--policy-option",
        "static-ttl.ttl_s=0.75",
        "--no-report",
        "--out",
        out,
    )
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in (out / "static-ttl-seed0" / "scheduler_timestamps.jsonl").open()]
    assert {event["ttl_s"] for event in events if event["event"] == "pin"} == {0.75}


def test_trace_commands(tmp_path: Path, trace: Path) -> None:
    made = tmp_path / "made.jsonl.gz"
    assert bench("traces", "synth", made, "--profile", "bfcl", "-n", 30, "--seed", 4).exit_code == 0
    assert len(list(read_programs(made))) == 30
    assert bench("traces", "validate", made).exit_code == 0
    assert bench("traces", "fit", made, tmp_path / "p.json").exit_code == 0
    assert bench("traces", "synth", tmp_path / "b.jsonl", "--profile", tmp_path / "p.json", "-n", 5).exit_code == 0
    stats = json.loads(bench("traces", "stats", made, "--json").stdout)
    assert stats["programs"] == 30
    assert "Table 2" in bench("traces", "stats", "swebench").stdout
    assert bench("traces", "import", trace, tmp_path / "copy.jsonl").exit_code == 0
    assert list(read_programs(tmp_path / "copy.jsonl")) == list(read_programs(trace))


def test_validate_names_every_fault(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"kind":"header","schema":"continuum-trace","version":1}\n{"kind":"program"}\nnonsense\n')
    done = bench("traces", "validate", bad)
    assert done.exit_code == 2
    assert done.stdout.splitlines()[0] == f"{bad}:2: program_id: missing"
    assert f"{bad}:3: not JSON" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "absent.jsonl"], "absent.jsonl: cannot read"),
        (["swebench", "--jps", "0"], "--jps 0: programs per second must be above 0"),
        (["swebench", "--jps", "-1"], "must be above 0"),
        (["swebench", "--gpu", "tpu"], "unknown GPU 'tpu'; there are: a100-80gb"),
        (["swebench", "--model", "gpt"], "unknown model 'gpt'"),
        (["swebench", "--policy", "moon"], "unknown policy 'moon'; there are: vllm"),
        (["swebench", "--policy", ","], "names no policy; there are vllm"),
        (["swebench", "--jobs", "-1"], "--jobs -1: must be at least 1"),
        (["swebench", "--seed", "-1"], "--seed -1: must not be negative"),
        (["swebench", "--block-size", "0"], "--block-size 0: must be at least 1"),
        (
            ["swebench", "--policy-option", "static-ttl.ttl_s=-1"],
            "ttl_s = '-1': must be a number from 0 to 1000000000, or none",
        ),
        (
            ["swebench", "--policy-option", "static-ttl.ttl_s=nan"],
            "ttl_s = 'nan': must be a number from 0 to 1000000000, or none",
        ),
        (
            ["swebench", "--policy-option", "continuum.cold_samples=x"],
            "cold_samples = 'x': must be a whole number from 0 to 1000000000",
        ),
        (["swebench", "--policy-option", "continuum.moon=1"], "no option 'moon'; it has: cold_samples"),
        (["swebench", "--policy-option", "moon"], "expected POLICY.OPTION=VALUE"),
        (["swebench", "--policy", "vllm", "--policy-option", "continuum.x=1"], "'continuum' is not in this run"),
        (["swebench", "--num-programs", "0"], "must be at least 1"),
        (["swebench", "--seeds", "0"], "must be at least 1"),
        (["swebench", "--turn-scale", "0"], "must be at least 1"),
        (["swebench", "--tokens-reading", "moon"], "there are context and cumulative"),
        (["swebench", "--pins-yield-to", "moon"], "there are policy, never, waiting, later, anyone"),
        (["swebench", "--gpu-memory-utilization", "2"], "above 0, at most 1"),
        (["swebench", "--step-overhead-ms", "-1"], "must not be negative"),
        (
            ["swebench", "--offload", "dram-1", "--base-url", "http://x/v1"],
            "--offload: not with --base-url",
        ),
        (["swebench", "--offload", "dram"], "--offload 'dram': expected dram-100, dram-200"),
        (["swebench", "--offload", "dram-0+ssd-10"], "an SSD tier needs a DRAM tier above it"),
        (["swebench", "--policy", "moon+offload"], "unknown policy 'moon'; there are: vllm"),
        (["swebench", "--tp", "3"], "3; there are: 1, 2, 4, 8"),
        (["swebench", "--model", "llama-3.1-70b"], "does not fit 1 x h100-80gb"),
        (["swebench", "--max-num-seqs", "0"], "--max-num-seqs 0: must be at least 1"),
        (["swebench", "--chunk-tokens", "16"], "below max_num_seqs"),
        (["analyze", "nowhere"], "holds neither"),
        (["compare", "nowhere"], "nowhere: no such file or directory"),
        (["report", "nowhere"], "nowhere: no such file or directory"),
        (["traces", "stats", "absent"], "cannot read"),
        (["traces", "synth", "x.jsonl", "--profile", "moon"], "no profile of that name"),
        (["traces", "synth", "x.jsonl", "--seed", "-1"], "--seed -1: must not be negative"),
        (["traces", "synth", "x.jsonl", "--length-scale", "0"], "--length-scale 0: must be above 0"),
        (["traces", "convert", "x", "y", "--to", "preview"], "converts a run directory"),
        (
            ["traces", "convert", "x", "y", "--to", "moon"],
            "there are continuum, agentic-mooncake, mooncake, llmservingsim, preview, native",
        ),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    assert message in refused(*arguments)


def test_damaged_traces(tmp_path: Path, trace: Path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(trace.read_bytes()[:-60])
    assert "cut short" in refused("replay", cut)
    text = gzip.decompress(trace.read_bytes()).decode().replace('"duration_s":0.5', '"duration_s":-0.5', 1)
    negative = tmp_path / "negative.jsonl"
    negative.write_text(text)
    assert "negative.jsonl:3: tool_calls[0].duration_s: -0.5 is below 0" in refused("replay", negative)
    (tmp_path / "other.txt").write_text("hello\n")
    assert "format not recognised" in refused("replay", tmp_path / "other.txt")


def test_a_turn_longer_than_the_context(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    write_programs(path, [Program("short", (Turn(100, 5),)), Program("long", (Turn(100, 5), Turn(140_000, 5)))])
    assert "program 'long', turn 1: prompt and output are 140110 tokens" in refused("replay", path)
    done = bench("replay", path, "--skip-invalid", "--policy", "vllm", "--no-report", "--json", "--out", tmp_path / "r")
    assert done.exit_code == 0
    assert "skipped: program 'long', turn 1" in done.stderr
    assert json.loads(done.stdout)["policies"]["vllm"]["programs_finished"] == 1


def test_directories_that_cannot_be_used(tmp_path: Path, trace: Path, experiment: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot create" in refused("replay", trace, "--out", tmp_path / "file" / "run")
    before = (experiment / "summary.json").read_bytes()
    assert "holds another run" in refused("replay", trace, "--out", experiment)
    assert (experiment / "summary.json").read_bytes() == before


def test_a_stopped_experiment_is_continued(tmp_path: Path, trace: Path) -> None:
    """The state that Ctrl-C leaves: one run is complete, one has recorded a part, one has not begun."""
    command = ("replay", trace, "--policy", "vllm", "--seeds", 3, "--no-report", "--out", tmp_path / "r")
    runs = [tmp_path / "r" / f"vllm-seed{seed}" for seed in range(3)]
    assert bench(*command).exit_code == 0
    whole = {
        file: file.read_bytes() for run in runs for file in run.glob("*.json*") if file.name != "scheduler_time.json"
    }
    for run in runs[1:]:
        (run / "engine.json").unlink()
    turns = runs[1] / "turns.jsonl"
    turns.write_bytes(whole[turns][:500])
    for name in ("turns.jsonl", "scheduler_timestamps.jsonl"):
        (runs[2] / name).unlink()
    kept = (runs[0] / "engine.json").stat().st_mtime_ns
    assert "r: holds another run: workload.jps differs" in refused(*command, "--jps", 1)
    assert "r: holds another run: policy differs" in refused(*command, "--policy", "continuum")
    done = bench(*command)
    assert done.exit_code == 0, done.stderr
    assert "1 of 3 runs are complete already; 2 runs of 6 programs" in done.stderr
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["seeds"] == [0, 1, 2]
    assert {file: file.read_bytes() for file in whole} == whole
    assert (runs[0] / "engine.json").stat().st_mtime_ns == kept
    assert "3 runs, all complete already" in bench(*command).stderr


def test_an_experiment_that_recorded_nothing_gives_way(tmp_path: Path, trace: Path) -> None:
    command = ("replay", trace, "--policy", "vllm", "--no-report", "--out", tmp_path / "r")
    assert bench(*command).exit_code == 0
    for file in (tmp_path / "r").glob("*/*"):
        if file.name not in ("manifest.json", "engine.log"):
            file.unlink()
    assert bench(*command, "--jps", 1).exit_code == 0
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["workload"]["arrivals"] == "poisson"
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["policies"]["vllm"]["programs_finished"] == 6


def test_import_says_what_it_left_out_and_replaces_nothing(tmp_path: Path) -> None:
    rows = [{"program_id": f"p{i}", "prompt_tokens": 100 if i else 0, "output_tokens": 5} for i in range(5)]
    source, target = tmp_path / "table.jsonl", tmp_path / "mine.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = bench("traces", "validate", source)
    assert (
        done.exit_code,
        "in format numeric, not a Continuum trace; 4 of 5 programs can be imported" in done.stderr,
    ) == (
        0,
        True,
    )
    done = bench("traces", "import", source, target)
    assert done.exit_code == 0
    assert "left out: " in done.stderr
    assert "program 'p0': no answer has token counts" in done.stderr
    assert f"4 of 5 programs written to {target}" in done.stderr
    assert bench("traces", "validate", target).exit_code == 0
    for name, *arguments in (("import", source), ("synth",), ("fit", source), ("convert", source)):
        more = ("--to", "mooncake") if name == "convert" else ()
        assert f"{target}: exists already; --overwrite replaces it" in refused(
            "traces", name, *arguments, target, *more
        )
        assert len(list(read_programs(target))) == 4
    assert bench("traces", "synth", target, "-n", 2, "--overwrite").exit_code == 0
    assert len(list(read_programs(target))) == 2
    source.write_text(json.dumps(rows[0]) + "\n")
    assert "no program with token counts in it" in refused("traces", "import", source, tmp_path / "none.jsonl")
    assert bench("traces", "validate", source).exit_code == 2


def test_a_pool_too_small_for_a_program_fails_that_run_and_says_so(tmp_path: Path, trace: Path) -> None:
    done = bench("replay", trace, "--kv-blocks", 100, "--policy", "vllm", "--out", tmp_path / "r")
    assert done.exit_code == 1
    assert "do not fit the KV pool" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor() -> None:
    found = json.loads(bench("doctor", "--json").stdout)
    assert {check["name"] for check in found["checks"]} >= {"Python", "vLLM", "step times"}


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_help_cuts_no_name(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    def check(command: Any, *path: str) -> None:
        usual = [each for each in command.params if not getattr(each, "hidden", False)]
        assert len(usual) < 17, path
        whole = "--help-all" if len(usual) < len(command.params) else "--help"
        lines = bench(*path, whole).stdout.splitlines()
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert not name.startswith("-") or any(name in line.replace(",", " ").split() for line in lines)
            for word in (parameter.help or "").split():
                assert any(word in line for line in lines), (path, word)
        for name, inner in getattr(command, "commands", {}).items():
            assert f"  {name}" in lines
            check(inner, *path, name)

    check(get_command(app))
    assert "--pins-yield-to" not in bench("swebench", "--help").stdout
    assert "--resume: it is gone; --out DIR continues the run in DIR" in bench("swebench", "--resume", "r").stderr


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)])
def test_doctor_knows_the_pythons(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], ok: bool) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0))
    assert _python().ok is ok


def test_help_imports_nothing_heavy() -> None:
    heavy = ("vllm", "torch", "pandas", "numpy")
    code = f"import sys, continuum_bench.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_and_a_missing_argument() -> None:
    assert bench("--version").stdout.startswith("continuum-bench ")
    done = bench("replay")
    assert done.exit_code == 2
    assert "Missing argument" in done.stderr


def test_a_directory_of_trajectories_can_be_played(tmp_path: Path) -> None:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    assert "no file in a known format in it" in refused("replay", folder)
    messages = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 40}]
    (folder / "a.traj.json").write_text(json.dumps({"messages": messages, "info": {}}))
    done = bench("replay", folder, "--policy", "vllm", "--no-report", "--json", "--out", tmp_path / "r")
    assert done.exit_code == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["policies"]["vllm"]["programs_finished"] == 1
    assert summary["manifest"]["workload"]["sha256"]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    arguments = ["replay", str(trace), "--policy", "vllm", "--seeds", "200", "--jobs", "1", "--no-report"]
    code, rest = interrupted([*arguments, "--out", str(out)], "vllm-seed0: done")
    assert code == 130
    assert "Traceback" not in rest
    done = len(list(out.glob("*/engine.json")))
    assert 0 < done < 200
    assert f"stopped; {done} of 200 runs are complete in {out}; the same command with --out {out} goes on" in rest
    assert json.loads((out / "summary.json").read_text())["seeds"] == list(range(done))
    cut_short = [folder for folder in out.glob("vllm-*") if not (folder / "engine.json").exists()]
    assert len(cut_short) == 200 - done  # each holds its manifest, and no summary counts it


def test_a_run_that_was_cut_short_says_so(experiment: Path, tmp_path: Path) -> None:
    shutil.copytree(experiment / "vllm-seed0", tmp_path / "half")
    assert "cut short" not in bench("analyze", tmp_path / "half").stderr
    (tmp_path / "half" / "engine.json").unlink()
    assert "cut short" in bench("analyze", tmp_path / "half").stderr
    assert "no finished run" in refused("compare", tmp_path)


def test_ctrl_c_while_vllm_loads(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    code, rest = interrupted(["replay", str(trace), "--out", str(out)], f"into {out}")
    assert code == 130
    assert "Traceback" not in rest
    (line,) = rest.splitlines()
    assert line.startswith("stopped")
    assert not (out / "summary.json").exists()


def test_ctrl_c_before_a_command_has_begun() -> None:
    """The interpreter is at its imports: a KeyboardInterrupt there would be a traceback."""
    program = "import os, signal\nfrom continuum_bench.ctrl_c import leave_at_once\nleave_at_once()\n"
    program += "os.kill(os.getpid(), signal.SIGINT)\nprint('went on')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_a_profile_stands_in_the_caption_in_place_of_the_gpu(tmp_path: Path) -> None:
    assert bench("profile", "--out", tmp_path / "mine.json").exit_code == 0
    options = ("--num-programs", 1, "--policy", "vllm", "--no-report", "--out", tmp_path / "out")
    done = bench("swebench", *options, "--profile", tmp_path / "mine.json")
    assert done.exit_code == 0, done.stderr
    assert "llama-3.1-8b on the server of mine.json" in done.stdout
    assert "h100" not in done.stdout
