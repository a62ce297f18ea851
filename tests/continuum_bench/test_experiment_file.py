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
from bench_cli import allowed, succeeded
from continuum_bench.completion import OFFERS
from continuum_bench.experiment_file import experiment_yaml, read_experiment
from continuum_bench.options.declare import Declared, Limit, declared
from continuum_bench.options.policies import arms_of
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.options.serve import ServeOptions
from continuum_bench.options.sweep import FigureOptions
from continuum_bench.options.together import settled
from continuum_bench.options.traces import FitOptions, ImportLogOptions, ImportOptions, StatsOptions, SynthOptions
from continuum_server.step_times.specs import GPUS
from hypothesis import given
from hypothesis import strategies as st


def written(folder: Path, text: str) -> Path:
    file = folder / "experiment.yaml"
    file.write_text(text)
    return file


def test_a_file_names_its_trace_from_where_it_lies_or_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--print-config`` names it as it was given."""
    for name in ("trace", "folder"):
        (tmp_path / name).mkdir()
        assert read_experiment(written(tmp_path, f"workload: {name}")).options.traces == tmp_path / name
    monkeypatch.chdir(tmp_path)
    printed = succeeded("replay trace --base-url http://127.0.0.1:1/v1 --label new --print-config").stdout
    (tmp_path / "elsewhere").mkdir()
    found = read_experiment(written(tmp_path / "elsewhere", printed))
    assert (found.workload, experiment_yaml(found.workload, found.options, found.live)) == ("replay", printed)


VALUES: dict[str, Any] = {
    "policy": [["vllm"], ["vllm,working-set", " static-ttl , vllm"]],
    "gpu": ["h100-80gb", "a100-80gb"],
    "model": ["llama-3.1-8b"],
    "offload": ["dram-100", "dram-100@pcie4/8"],
    "router": ["sticky", "cache-aware"],
    "arrivals": ["poisson", "gamma:2", "recorded"],
    "tool_times": ["recorded", "constant:3"],
    "hint_error": ["0", "0.5", "adversarial:0.5:silent"],
    "start_within": ["0:0", "0.25:0.75"],
    "warm_up": ["0", "10", "60s", "11r"],
    "cool_down": ["0", "10", "lanes"],
    "speculative": ["3:2.8", "1:1"],
    "until": [None, "3%"],
    **{name: [None] for name in ("policy_option", "traces", "profile", "scheduler_records")},
}
"""Of options that take neither any text nor one of several names."""
ANY: dict[Any, list[Any]] = {
    bool: [False, True],
    int: [0, 1, 2, 3, 7, 512, 9999],
    float: [0.0, 1e-7, 0.1, 1 / 3, 0.5, 1.0, 3.0, 12345.678, 1e9],
    str: ["1", "no", "~", "null", "a b", "# x: y", "[", "'", "\n", "naïve", "1e3", "2026-01-01"],
    Path: [Path("a b/c"), Path("1"), Path("no"), Path("#x: y")],
}


def values(option: Declared) -> st.SearchStrategy[Any]:
    kinds = get_args(option.plain_type) or (option.plain_type,)
    names = next((limit.names for limit in option.extras if isinstance(limit, Limit) and limit.names), ())
    given = VALUES.get(option.name) or names or ANY[next(each for each in kinds if each is not NoneType)]
    return st.sampled_from(
        [value for value in [*given, *([None] if NoneType in kinds else [])] if allowed(option, value)]
    )


def every(kind: Any) -> st.SearchStrategy[Any]:
    def build(given: dict[str, Any]) -> Any:
        if given.get("concurrency") is not None:
            given = {**given, "arrivals": kind.arrivals}  # one of the two may be given
        elif given.get("scenario") is not None:
            given = {**given, "arrivals": "concurrency:3"}  # a scenario needs a closed loop
        return settled(kind(**given))

    return st.fixed_dictionaries({name: values(option) for name, option in declared(kind).items()}).map(build)


@given(options=every(RunOptions), live=every(LiveOptions), workload=st.sampled_from(["swebench", "bfcl", "openhands"]))
def test_every_experiment_survives_being_printed_and_read(
    options: RunOptions, live: LiveOptions, workload: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Options that do nothing are at their defaults; policies are read as a list of names."""
    if live.base_url is not None:
        options = settled(settled(options, live))  # without replicas there is no router
    else:
        live = LiveOptions()
    expected = replace(options, print_config=False, policy=options.policy and arms_of(options.policy))
    printed = experiment_yaml(workload, options, live)
    found = read_experiment(written(tmp_path_factory.mktemp("e"), printed))
    assert (found.workload, found.options, found.live) == (workload, expected, live)


def test_a_number_is_text_where_the_option_takes_text(tmp_path: Path) -> None:
    text = "hint_error: 0.5\nlabel: 7\nwarm_up: 10\nhints: tool_s\njps: 1\nbase_url: http://127.0.0.1:1/v1\n"
    found = read_experiment(written(tmp_path, text), ["cool_down=3"])
    assert (found.options.hint_error, found.options.jps) == ("0.5", 1.0)
    assert read_experiment(written(tmp_path, "policy: vllm")).options.policy == ["vllm"]
    assert (found.live.label, found.options.warm_up, found.options.cool_down) == ("7", "10", "3")


def test_bash_completes_commands_options_and_values() -> None:
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
    assert completed("swebench --policy work") == ["working-set"]
    assert completed("swebench --policy vllm,static") == ["vllm,static-ttl"]
    assert completed("serve --policy sto") == ["stock"]
    assert completed("swebench --gpu h100") == [gpu.name for gpu in GPUS if gpu.name.startswith("h100")]
    assert "qwen3-8b" in completed("serve --model qwen3")
    assert completed("figure ab") == ["ablation"]
    assert completed("swebench --hints tool") == ["tool", "tool_s"]
    assert "claude-code" in completed("traces import --format cl")


def test_each_offer_belongs_to_an_option() -> None:
    """A class or a field that gets another name would lose its offers silently."""
    kinds = (RunOptions, ServeOptions, ImportLogOptions, FigureOptions, SynthOptions, ImportOptions, FitOptions)
    fields = {(each.owner.__name__, name) for kind in (*kinds, StatsOptions) for name, each in declared(kind).items()}
    assert set(OFFERS) <= fields
