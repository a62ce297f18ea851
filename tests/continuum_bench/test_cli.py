"""The command line as a user meets it: results, files, and one clear line for each mistake."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench, refused, succeeded
from continuum_analysis.compare.words import TextTable
from continuum_bench.cli import app
from continuum_bench.commands import exit_with
from continuum_bench.doctor import _python
from continuum_bench.show import print_table
from continuum_traces.programs.jsonl import read_programs, write_programs
from continuum_traces.schema import Program, Turn
from ctrl_c import interrupted
from recorded_runs import verdict_in
from rich.cells import cell_len
from typer import Exit
from typer.main import get_command

import continuum_client
from continuum_client import instrument_command, proxy_command

PRESSED = ("--jps", 2, "--kv-blocks", 1200, "--policy", "vllm,continuum")


@pytest.fixture(scope="module")
def experiment(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies, two seeds."""
    out = tmp_path_factory.mktemp("runs") / "experiment"
    done = succeeded("replay", trace, *PRESSED, "--seeds", 2, "--out", out)
    assert "JCT to vllm" in done.stdout
    said = verdict_in((out / "report.html").read_text())
    assert "(2 seeds: no proof)" in said
    assert f"\n{said}\n" in done.stdout  # the terminal and the report say the same
    assert f"report: {out / 'report.html'}" in done.stderr
    assert "3 of 4 runs, about " in done.stderr  # and the time left
    assert "4 of 4 runs" in done.stderr
    return out


def test_an_experiment_is_complete_in_itself(experiment: Path) -> None:
    summary = json.loads((experiment / "summary.json").read_text())
    assert list(summary["policies"]) == ["vllm", "continuum"]
    assert [row["programs_finished"] for row in summary["policies"].values()] == [6, 6]
    manifest = summary["manifest"]
    assert manifest["hardware"]["step_times"]["kind"] == "measured-table"
    assert all((manifest["workload"]["sha256"], manifest["versions"]["vllm"], manifest["modelled"]))
    assert len(list(experiment.glob("*/scheduler_timestamps.jsonl"))) == 4
    engine = json.loads((experiment / "continuum-seed0" / "engine.json").read_text())
    took = json.loads((experiment / "continuum-seed0" / "scheduler_time.json").read_text())
    assert took["calls"] == engine["scheduler_calls"]
    assert 0 < took["total_s"] / took["calls"] <= took["longest_s"] <= took["total_s"]
    row = summary["policies"]["continuum"]
    assert 0 < row["scheduler_time_per_call_s"] <= took["longest_s"]


@pytest.mark.slow
def test_seeds_are_added_until_the_interval_is_narrow(trace: Path, tmp_path: Path) -> None:
    def played(until: str) -> tuple[int, float]:
        succeeded(
            "replay", trace, *PRESSED, "--length-scale", 2, "--until", until, "--no-report", "--out", tmp_path / "out"
        )
        row = json.loads((tmp_path / "out" / "summary.json").read_text())["policies"]["continuum"]
        return len(row["seeds"]), row["jct_mean_ratio_interval"][1] / row["jct_mean_ratio"] - 1

    assert played("1000%")[0] == 3  # fewer have no interval
    first = played("1000%")[1]
    number, width = played(f"{first * 70:.4f}%")  # goes on from there
    assert number > 3
    assert width <= first * 0.7


def test_json_is_alone_and_policy_options_reach_the_policy(trace: Path, tmp_path: Path) -> None:
    policy = ("--policy", "static-ttl", "--policy-option", "static-ttl.ttl_s=0.75")
    done = bench("replay", trace, *policy, "--num-programs", 9, "--no-report", "--json", "--out", tmp_path / "r")
    summary = json.loads(done.stdout)
    assert summary["policies"]["static-ttl"]["programs_finished"] == 9  # six programs, three of them twice
    assert summary["manifest"]["notes"] == ["programs are repeated with fresh tokens"]
    assert not (tmp_path / "r" / "report.html").exists()
    events = [json.loads(line) for line in (tmp_path / "r/static-ttl-seed0/scheduler_timestamps.jsonl").open()]
    assert {event["ttl_s"] for event in events if event["event"] == "pin"} == {0.75}


def test_trace_commands(tmp_path: Path, trace: Path) -> None:
    made = tmp_path / "made.jsonl.gz"
    succeeded("traces synth --profile bfcl -n 30 --seed 4", made)
    succeeded("traces validate", made)
    succeeded("traces fit", made, tmp_path / "p.json")
    succeeded("traces synth -n 5 --profile", tmp_path / "p.json", tmp_path / "b.jsonl")
    assert json.loads(succeeded("traces stats --json", made).stdout)["programs"] == 30
    assert "Table 2" in succeeded("traces stats swebench").stdout
    succeeded("traces import", trace, tmp_path / "copy.jsonl")
    assert list(read_programs(tmp_path / "copy.jsonl")) == list(read_programs(trace))


def test_validate_names_every_fault(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"kind":"header","schema":"continuum-trace","version":1}\n{"kind":"program"}\nnonsense\n')
    done = bench("traces", "validate", bad)
    assert done.exit_code == 2
    assert done.stdout.splitlines()[0] == f"{bad}:2: program_id: missing"
    assert f"{bad}:3: not JSON" in done.stdout


def test_a_turn_longer_than_the_context(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    write_programs(path, [Program("short", (Turn(100, 5),)), Program("long", (Turn(100, 5), Turn(140_000, 5)))])
    assert "program 'long', turn 1: prompt and output are 140110 tokens" in refused("replay", path)
    done = succeeded("replay --skip-invalid --policy vllm --no-report --json", path, "--out", tmp_path / "r")
    assert "skipped: program 'long', turn 1" in done.stderr
    assert json.loads(done.stdout)["policies"]["vllm"]["programs_finished"] == 1


def test_a_stopped_experiment_is_continued(trace: Path, experiment: Path, tmp_path: Path) -> None:
    """The state that Ctrl-C leaves: two runs are complete, one has recorded a part, one has not begun. What is played
    again writes equal bytes."""
    out = shutil.copytree(experiment, tmp_path / "r")
    command = ("replay", trace, *PRESSED, "--seeds", 2, "--no-report", "--out", out)
    part, none = out / "vllm-seed1", out / "continuum-seed0"
    files = (file for file in out.glob("*-seed?/*.json*") if file.name != "scheduler_time.json")
    whole = {file: file.read_bytes() for file in files}
    assert {file.name for file in whole} > {"scheduler_timestamps.jsonl", "turns.jsonl", "tool_statistics.json"}
    for run in (part, none):
        (run / "engine.json").unlink()
    (part / "turns.jsonl").write_bytes(whole[part / "turns.jsonl"][:500])
    for name in ("turns.jsonl", "scheduler_timestamps.jsonl"):
        (none / name).unlink()
    kept = (out / "vllm-seed0" / "engine.json").stat().st_mtime_ns
    before = (out / "summary.json").read_bytes()
    assert "r: holds another run: workload.jps differs" in refused(*command, "--jps", 1)
    assert "r: holds another run: policy differs" in refused(*command, "--policy", "static-ttl")
    assert (out / "summary.json").read_bytes() == before
    done = succeeded(*command)
    assert "4 runs, 2 done before, 2 to play" in done.stderr
    assert json.loads((out / "summary.json").read_text())["seeds"] == [0, 1]
    assert {file: file.read_bytes() for file in whole} == whole
    assert (out / "vllm-seed0" / "engine.json").stat().st_mtime_ns == kept
    assert "4 runs, 4 done before, 0 to play" in bench(*command).stderr


def test_import_says_what_it_left_out_and_replaces_nothing(tmp_path: Path) -> None:
    rows = [{"program_id": f"p{i}", "prompt_tokens": 100 if i else 0, "output_tokens": 5} for i in range(5)]
    source, target = tmp_path / "table.jsonl", tmp_path / "mine.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = bench("traces", "validate", source).stderr
    assert "(it has program_id, prompt_tokens, output_tokens), not a Continuum trace; 4 of 5 programs can be" in said
    said = bench("traces", "import", source, target).stderr
    assert "left out: " in said
    assert "program 'p0': no answer has token counts" in said
    assert f"4 of 5 programs written to {target}" in said
    assert bench("traces", "validate", target).exit_code == 0
    for words in (["import", source], ["synth"], ["fit", source], ["convert", source, "--to", "mooncake"]):
        assert f"{target}: exists already; --overwrite replaces it" in refused("traces", *words, target)
        assert len(list(read_programs(target))) == 4
    assert bench("traces", "synth", target, "-n", 2, "--overwrite").exit_code == 0
    assert len(list(read_programs(target))) == 2
    source.write_text(json.dumps(rows[0]) + "\n")
    assert "no program with token counts in it" in bench("traces", "import", source, tmp_path / "none.jsonl").stderr
    assert bench("traces", "validate", source).exit_code == 2


@pytest.mark.parametrize("command", [instrument_command, proxy_command], ids=lambda module: module.__name__)
def test_the_client_s_commands_have_its_version(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command.main(["--version"])
    assert (
        capsys.readouterr().out.split()[1]
        == continuum_client.__version__
        == importlib.metadata.version("continuum-ttl")
    )


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(bench("doctor", "--json").stdout)
    assert {check["name"] for check in found["checks"]} >= {"Python", "vLLM", "step times"}
    for version, ok in (((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)):
        monkeypatch.setattr(sys, "version_info", (*version, 0))
        assert _python().ok is ok


@pytest.mark.parametrize("columns", ["20", "200"])
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


@pytest.mark.parametrize("command", ["figure list", "traces stats swebench", "doctor"])
def test_tables_fit_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a table are those with its borders, or below its headings; other lines are wrapped by the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line for line in bench(command).stdout.splitlines() if line[:1] in "┏┃┡│└"]
    assert lines
    assert {len(line) for line in lines} <= set(range(81))
    assert all(line[-1] in "┓┃┩│┘" for line in lines)


@pytest.mark.parametrize("width", [200, 62, 50, 33, 32, 26, 20, 8])
def test_a_table_loses_nothing_on_a_narrow_screen(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between words, then without lines between columns, then within words."""
    monkeypatch.setenv("COLUMNS", str(width))
    headings, row = ("policy", "mean JCT, s", "what it is"), ("working-set", "1,234 s", "three short words")
    print_table(TextTable(headings, [row, ("漢字", "", "")]), "title", words=("what it is",))
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "title"
    assert max(map(cell_len, lines)) <= width
    assert ("│" in "".join(lines)) is (width >= 33)
    if width >= 26:
        assert {*" ".join(lines).split()} >= {"policy", "working-set", "1,234", "three", "words", "漢字"}
    shown = Counter("".join(lines))
    assert all(shown[letter] == "".join([*headings, *row]).count(letter) for letter in "abcdefghijklmnopqrst1234")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("vllm", "torch", "pandas", "numpy", "pydantic", "importlib.metadata")
    code = f"import sys, continuum_bench.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_directory_of_trajectories_is_played_on_the_server_of_a_profile(tmp_path: Path) -> None:
    folder, profile = tmp_path / "trajectories", tmp_path / "mine.json"
    folder.mkdir()
    messages = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 40}]
    (folder / "a.traj.json").write_text(json.dumps({"messages": messages, "info": {}}))
    assert bench("profile", "--out", profile).exit_code == 0
    done = succeeded("replay", folder, "--profile", profile, "--policy", "vllm", "--no-report", "--out", tmp_path / "r")
    assert "llama-3.1-8b on the server of mine.json" in done.stdout
    assert "h100" not in done.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["policies"]["vllm"]["programs_finished"] == 1
    assert summary["manifest"]["workload"]["sha256"]


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    arguments = ["replay", str(trace), "--policy", "vllm", "--seeds", "200", "--jobs", "1", "--no-report"]
    code, rest = interrupted([*arguments, "--out", str(out)], "vllm-seed0: ")
    assert code == 130
    assert "Traceback" not in rest
    done = len(list(out.glob("*/engine.json")))
    assert 0 < done < 200
    assert f"stopped; {done} of 200 runs are complete in {out}; the same command with --out {out} goes on" in rest
    assert json.loads((out / "summary.json").read_text())["seeds"] == list(range(done))
    assert len(list(out.glob("vllm-*"))) == done  # nothing is left of a run that was stopped


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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "a/b"), "error: a/b: Permission denied"),
        (OSError(28, "No space left on device"), "error: No space left on device"),
    ],
)
def test_a_fault_of_a_file_is_one_line(capsys: pytest.CaptureFixture[str], error: OSError, said: str) -> None:
    def work() -> int:
        raise error

    with pytest.raises(Exit) as left:
        exit_with(work)
    assert (left.value.exit_code, capsys.readouterr().err.strip()) == (2, said)
