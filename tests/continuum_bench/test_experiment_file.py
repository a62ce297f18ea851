"""``continuum-bench run FILE`` and ``--print-config``, shell completion, ``--quiet``."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest
from click.testing import Result
from continuum_bench.cli import app
from continuum_bench.errors import OptionError
from continuum_bench.experiment_file import KEYS, experiment_yaml, read_experiment
from continuum_bench.options.declare import Declared, Limit, declared
from continuum_bench.options.policies import arms_of
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.options.together import faults, settled
from continuum_traces.jsonl import write_programs
from continuum_traces.synth import load_profile, synthesize
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(folder: Path, text: str) -> Path:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return file


def test_every_option_of_a_run_is_a_key_by_its_name() -> None:
    for group in (RunOptions, LiveOptions):
        for option in declared(group).values():
            if option.name != "print_config":
                assert KEYS[option.spelling[2:].replace("-", "_")] is option


@pytest.mark.parametrize(
    "command",
    [
        "swebench",
        "bfcl --jps 0.5 --policy vllm,continuum --policy static-ttl --seeds 3 --policy-option static-ttl.ttl_s=5",
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
    (tmp_path / "folder").mkdir()
    assert read_experiment(written(tmp_path, "workload: folder")).options.traces == tmp_path / "folder"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("jps: 0.1\nnum-program: 3\n", ":2: num-program: no such option; did you mean num_programs?"),
        ("jps: 0.1\n\nseeds: five\n", ":3: seeds: 'five' is no value of this option; expected int"),
        ("seeds: 0\n", ":1: seeds: 0: must be at least 1"),
        ("seeds: 1\nseeds: 2\n", ":2: seeds: is given twice"),
        ("policy: {a: 1}\n", ":1: policy: {'a': 1} is no value of this option"),
        ("workload: nothing.jsonl\n", ":1: workload: 'nothing.jsonl' is no file, nor a workload; there are swebench"),
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("jps: 1\narrivals: sometimes\n", ":2: arrivals: sometimes: there are poisson"),
        ("jps: 1\ntool_times: slow\n", ":2: tool_times: slow: there are recorded"),
        ("hints: tool\nhint_error: much\n", ":2: hint_error: much: expected a number"),
        ("jps: 1\npolicy: [vllm, continum]\n", ":2: policy: unknown policy 'continum'; did you mean continuum?"),
        ("jps: 1\npolicy_option: continuum.x=1\n", ":2: policy_option: policy 'continuum' has no option 'x'"),
        ("jps: 1\npolicy_option: x.y=1\n", ":2: policy_option: x.y=1: policy 'x' is not in this run"),
        ("jps: 1\ngpu: h10\n", ":2: gpu: unknown GPU 'h10'; did you mean h100-80gb"),
        ("jps: 1\nmodel: llama-3.1-8\n", ":2: model: unknown model 'llama-3.1-8'; did you mean llama-3.1-8b"),
        ("jps: 1\nreplicas: 2\nrouter: stick\n", ":3: router: did you mean sticky? there are affinity, sticky"),
        ("replicas: 2\nkill_replica: now\n", ":2: kill_replica: now: expected REPLICA@SECOND"),
        ("jps: 1\noffload: ram\n", ":2: offload: 'ram': expected dram-100"),
        ("jps: 1\nprofile: none.json\n", ":2: profile: none.json: cannot read"),
        ("base_url: http://x/v1\nwarm_up: long\n", ":2: warm_up: long: expected a number of programs"),
        ("base_url: http://x/v1\ndialect: vlm\n", ":2: dialect: did you mean vllm? there are"),
        ("jps: 1\nhints: tols\n", ":2: hints: tols: did you mean tool_s? there are none, tool"),
    ],
)
def test_every_value_is_read_when_the_file_is(text: str, error: str, tmp_path: Path) -> None:
    """No fault waits until the engine is built."""
    done = bench("run", written(tmp_path, text))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert error in done.stderr


TEXTS = {
    "policy": st.lists(st.sampled_from(["vllm", "continuum", "vllm,working-set", " static-ttl , vllm"]), min_size=1),
    "policy_option": st.none(),
    "gpu": st.sampled_from(["h100-80gb", "a100-80gb"]),
    "model": st.just("llama-3.1-8b"),
    "offload": st.sampled_from([None, "dram-100", "dram-100@pcie4/8"]),
    "router": st.sampled_from(["sticky", "cache_aware"]),
    "kill_replica": st.sampled_from([None, "1@600"]),
    "arrivals": st.sampled_from(["poisson", "gamma:2", "recorded"]),
    "tool_times": st.sampled_from(["recorded", "constant:3"]),
    "hint_error": st.sampled_from(["0", "0.5", "adversarial:0.5:silent"]),
    "warm_up": st.sampled_from(["0", "10", "60s"]),
    "cool_down": st.sampled_from(["0", "10"]),
    "dialect": st.sampled_from([None, "vllm"]),
    "traces": st.none(),
    "profile": st.none(),
    "scheduler_records": st.none(),
}
"""Values of options that are not any text; options without one take any value of their type within their limit."""
ANY: dict[Any, list[Any]] = {
    bool: [False, True],
    int: [0, 1, 2, 3, 7, 512, 9999],
    float: [0.0, 1e-7, 0.1, 1 / 3, 0.5, 1.0, 3.0, 12345.678, 1e9],
    str: ["1", "no", "~", "null", "a b", "# x: y", "[", "'", "\n", "naïve", "1e3", "2026-01-01"],
    Path: [Path("a b/c"), Path("1"), Path("no"), Path("#x: y")],
}


def values(option: Declared) -> st.SearchStrategy[Any]:
    kinds = get_args(option.plain_type) or (option.plain_type,)
    if option.name in TEXTS:
        return TEXTS[option.name]
    named = [limit.names for limit in option.extras if isinstance(limit, Limit) and limit.names]
    kind = next(each for each in kinds if each is not NoneType)
    allowed = [value for value in (named[0] if named else ANY[kind]) if _allowed(option, value)]
    return st.sampled_from(allowed) | st.none() if NoneType in kinds else st.sampled_from(allowed)


def _allowed(option: Declared, value: Any) -> bool:
    try:
        option.check(value)
    except OptionError:
        return False
    return True


def every(kind: Any) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({name: values(option) for name, option in declared(kind).items()}).map(
        lambda given: settled(kind(**given))
    )


@given(options=every(RunOptions), live=every(LiveOptions), workload=st.sampled_from(["swebench", "bfcl", "openhands"]))
def test_every_experiment_survives_being_printed_and_read(
    options: RunOptions, live: LiveOptions, workload: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Options that do nothing are at their defaults; policies are read as a list of names."""
    defaults = RunOptions(print_config=options.print_config)
    if live.base_url is not None:
        refused = [option.name for option, _ in faults(options, live)]
        options = settled(replace(options, **{name: getattr(defaults, name) for name in refused}))
    else:
        live = LiveOptions()
    expected = replace(options, print_config=False, policy=options.policy and arms_of(options.policy))
    printed = experiment_yaml(workload, options, live)
    found = read_experiment(written(tmp_path_factory.mktemp("e"), printed))
    assert (found.workload, found.options, found.live) == (workload, expected, live)


def test_a_missing_file_and_an_unknown_override(tmp_path: Path) -> None:
    missing = bench("run", tmp_path / "missing.yaml")
    assert missing.stderr.endswith("missing.yaml: cannot read: No such file or directory\n")
    wrong = bench("run", written(tmp_path, "{}"), "--set", "sede=1")
    assert wrong.stderr == "error: --set sede=1: no such option; did you mean seed?\n"
    empty = bench("run", written(tmp_path, "{}"), "--set", "policy=")
    assert empty.stderr == "error: --set policy=: expected NAME=VALUE; null is the default\n"
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
