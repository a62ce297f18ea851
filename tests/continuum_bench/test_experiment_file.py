"""``continuum-bench run FILE`` and ``--print-config``, shell completion, ``--quiet``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from continuum_bench.cli import app
from continuum_bench.experiment_file import KEYS, experiment_yaml, read_experiment
from continuum_bench.options.declare import hints_of, spelling
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_traces.jsonl import write_programs
from continuum_traces.synth import load_profile, synthesize
from typer.testing import CliRunner


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(folder: Path, text: str) -> Path:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return file


def test_every_option_of_a_run_is_a_key_by_its_name() -> None:
    for group in (RunOptions, LiveOptions):
        for name, hint in hints_of(group).items():
            if name != "print_config":
                assert KEYS[spelling(name, hint)[2:].replace("-", "_")] == name


@pytest.mark.parametrize(
    "command",
    [
        "swebench",
        "bfcl --jps 0.5 --policy vllm,continuum --policy continuum-v1 --seeds 3 --policy-option static-ttl.ttl_s=5",
        "openhands --gpu a100-80gb --out runs/o --no-report --json --quiet --offload dram-100 --jobs 2",
        "swebench --traces trace.jsonl --format continuum --arrivals gamma:2",
        "replay trace.jsonl --num-programs 3 --base-url http://127.0.0.1:1/v1 --label new --warm-up 60s --retries 0",
    ],
)
def test_a_printed_file_is_read_as_the_same_options(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_programs(Path("trace.jsonl"), synthesize(load_profile("swebench"), 2, seed=1))
    printed = bench(*command.split(), "--print-config")
    assert printed.exit_code == 0, printed.output
    found = read_experiment(written(Path(), printed.stdout))
    assert found.workload == command.split()[0]
    assert experiment_yaml(found.workload, found.options, found.live) == printed.stdout


def test_a_file_names_its_trace_from_where_it_lies(tmp_path: Path) -> None:
    write_programs(tmp_path / "trace.jsonl", synthesize(load_profile("swebench"), 2, seed=1))
    assert read_experiment(written(tmp_path, "workload: trace.jsonl")).options.traces == tmp_path / "trace.jsonl"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("jps: 0.1\nnum-program: 3\n", ":2: num-program: no such option; did you mean num_programs?"),
        ("jps: 0.1\n\nseeds: five\n", ":3: seeds: 'five' is no value of this option; expected int"),
        ("seeds: 0\n", ":1: seeds: 0: must be at least 1"),
        ("seeds: 1\nseeds: 2\n", ":2: seeds: is there twice"),
        ("policy: {a: 1}\n", ":1: policy: {'a': 1} is no value of this option"),
        ("workload: nothing.jsonl\n", ":1: workload: 'nothing.jsonl' is no file, nor one of swebench"),
        ("jps: [\n", ":2: not YAML"),
        ("jps: 1\0\n", ": not YAML: unacceptable character #x0000"),
        ("hint_error: yes\n", ":1: hint_error: True is no value of this option; expected str"),
        ("- 1\n", ": expected a mapping of options to values"),
        ("jps: 1\nlabel: new\n", ":2: label: needs --base-url"),
    ],
)
def test_a_fault_is_one_sentence_with_its_line(text: str, error: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    done = bench("run", file)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert error in done.stderr


def test_a_missing_file_and_an_unknown_override(tmp_path: Path) -> None:
    missing = bench("run", tmp_path / "missing.yaml")
    assert missing.stderr.endswith("missing.yaml: cannot read: No such file or directory\n")
    wrong = bench("run", written(tmp_path, "{}"), "--set", "sede=1")
    assert wrong.stderr == "error: --set sede=1: no such option; did you mean seed?\n"
    cut = bench("run", written(tmp_path, "{}"), "--set", "policy=[vllm")
    assert cut.exit_code == 2
    assert cut.stderr.startswith("error: --set policy=[vllm: not YAML: expected ',' or ']'")


def test_a_number_is_text_where_the_option_takes_text(tmp_path: Path) -> None:
    text = "hint_error: 0.5\nlabel: 7\nwarm_up: 10\nhints: tool_s\njps: 1\nbase_url: http://127.0.0.1:1/v1\n"
    found = read_experiment(written(tmp_path, text), ["cool_down=3"])
    assert (found.options.hint_error, found.options.jps) == ("0.5", 1.0)
    assert read_experiment(written(tmp_path, "policy: vllm")).options.policy == ["vllm"]
    assert (found.live.label, found.live.warm_up, found.live.cool_down) == ("7", "10", "3")


def test_bash_completes_commands_and_options() -> None:
    """What the script of ``--install-completion`` asks for when Tab is pressed."""

    def completed(words: str) -> list[str]:
        asked = {
            "_CONTINUUM_BENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": f"continuum-bench {words}",
            "COMP_CWORD": str(len(words.split(" "))),
        }
        code = "from continuum_bench.cli import app; app(prog_name='continuum-bench')"
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=os.environ | asked, capture_output=True, text=True).stdout.split()

    assert completed("sw") == ["swebench", "sweep"]
    assert completed("compare --fail") == ["--fail-if"]
