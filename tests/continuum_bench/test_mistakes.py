"""Mistakes on the command line and in grids: one line that names the option or the field, exit code 2, no work done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_cli import bench
from fake_server import FakeServer, good
from recorded_runs import write_recorded
from small_replays import trace_of


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for a file, a folder or an address in the tables below."""
    folder = tmp_path_factory.mktemp("given")
    for seed in range(2):
        write_recorded(folder / "runs" / f"vllm-seed{seed}", "vllm", seed, [10.0, 11.0])
    with FakeServer("vllm", handler=good) as server:
        yield {
            "TRACE": str(trace_of(folder)),
            "URL": server.url,
            "RUNS": str(folder / "runs"),
            "NO": str(folder / "no"),
        }


def mistake(command: str, words: dict[str, str], out: Path) -> str:
    """The one line that a command says."""
    done = bench(*(({**words, "OUT": str(out)}).get(word, word) for word in command.split(" ")))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    assert not out.exists()
    return done.stderr.removeprefix("error: ")


COMMANDS = [
    ("traces convert . OUT --to preview --format otel", "--format: not with --to: --format is for traces"),
    ("swebench --hint-error 1", "--hint-error: needs --hints"),
    ("swebench --format otel", "--format: needs --traces"),
    ("swebench --router sticky", "--router: needs --replicas"),
    ("swebench --replicas 2 --router hash --out OUT", "router = hash: there are affinity, sticky"),
    ("swebench --replicas 2 --kill-replica 2@10 --out OUT", "needs a replica from 0 to 1"),
    ("swebench --length-scale 0", "--length-scale 0: must be above 0"),
    ("swebench --shared-prefix -1", "--shared-prefix -1: must not be negative"),
    ("swebench --jps 1 --arrivals recorded:2", "--jps: not with --arrivals: these arrivals have a rate of"),
    ("swebench --arrivals recorded:2 --out OUT", "has no arrival_s in the trace"),
    # servers
    ("swebench --label x", "--label: needs --base-url"),
    ("swebench --arrivals concurrency:2", "--arrivals concurrency:2: needs --base-url"),
    ("swebench --base-url http://x/v1 --gpu h200", "--gpu: not with --base-url: the server decides that"),
    ("swebench --base-url http://x/v1 --policy vllm", "--policy: not with --base-url: the server decides that"),
    ("swebench --base-url http://x/v1 --scheduler-records NO", "no: no such folder"),
    ("swebench --base-url localhost --out OUT", "expected http:// or https://"),
    ("swebench --base-url http://127.0.0.1:9/v1 --out OUT", "no OpenAI-compatible server answers"),
    ("swebench --base-url http://127.0.0.1:99999/v1 --out OUT", "--base-url http://127.0.0.1:99999/v1: Port out of"),
    ("swebench --base-url http://[::1/v1 --out OUT", "Invalid IPv6 URL"),
    ("replay TRACE --base-url URL --dialect x --out OUT", "there are headers, vllm"),
    ("replay TRACE --base-url URL --prompts x --out OUT", "there are tokens and text"),
    ("replay TRACE --base-url URL --served-model x --out OUT", "the server has m"),
    ("replay TRACE --base-url URL --processes 0 --out OUT", "--processes 0: must be at least 1"),
    ("replay TRACE --base-url URL --arrivals concurrency:2 --processes 3 --out OUT", "more than the 2 programs at a"),
    ("replay TRACE --base-url URL --arrivals concurrency:2 --warm-up 3s --out OUT", "give a number of programs, not"),
    ("replay TRACE --base-url URL --warm-up 2 --cool-down 1 --out OUT", "no program is left to count"),
    ("serve --engine cpu --time-scale 2", "--time-scale: needs --engine emulated"),
    ("serve --health-port 0", "--health-port: needs --replicas"),
    ("profile --out OUT --repeats 9", "--repeats: needs --base-url"),
    # recorded runs
    ("analyze RUNS --json --table pins", "--json: not with --table: --format json writes a table as JSON"),
    ("analyze RUNS --table cats", "--table cats: there are runs, misses, programs, turns, pins"),
    ("analyze RUNS --misses --table pins", "--misses: not with --table: --table misses is the table of them"),
    ("compare RUNS --format xls", "--format xls: there are csv, parquet, json, latex, markdown"),
    ("compare RUNS --baseline stock", "--baseline stock: no run of it; there are vllm"),
    ("compare RUNS RUNS", "runs: given twice"),
    ("compare NO", "no: no such file or directory"),
    ("compare RUNS --junit OUT", "--junit: needs --fail-if"),
    ("compare RUNS --fail-if jct_mean>1 --format csv", "--fail-if: not with --format: write the table"),
    ("compare RUNS --slo ttft=2", "--slo ttft=2: expected ttft=2s"),
    ("compare RUNS --fail-if jct_mean>", "--fail-if jct_mean>: "),
    ("compare RUNS --fail-if jct_men>1", "--fail-if jct_men>1: "),
    ("compare RUNS --fail-if itl_p99>1 --json", "--fail-if itl_p99>1: "),
    (f"compare RUNS --fail-if jct_mean>{10**400}", "--fail-if jct_mean>1000"),
    (f"compare RUNS --fail-if {'(' * 300}", "--fail-if ((("),
    ("compare RUNS --fail-if thunder:jct_mean>1", "no run of thunder; there are"),
    # figures and sweeps
    ("figure moon", "figure moon: there are ablation"),
    ("figure ablation --traces absent.jsonl --out OUT", "no file"),
    ("figure ablation --set moon=1 --out OUT", "moon: unknown"),
    ("figure tool-times --limit 2 --out OUT", "figure tool-times: --limit 2: only for figure goodput"),
    ("figure tool-times --set jps=1 --out OUT", "figure tool-times: --set jps=1: this figure has no grid"),
    ("figure goodput --dry-run", "dry-run: this figure has no cells"),
    ("sweep", "give a grid"),
    ("sweep absent.yaml", "absent.yaml: cannot read"),
    ("sweep --set jps", "expected AXIS=VALUE"),
    ("sweep --set jps=[", "--set jps=[: not YAML: "),
    ("sweep --set jps=1 --jobs 0", "--jobs 0: must be at least 1"),
    ("sweep --set jps=1 --out RUNS", "holds a run already"),
    ("sweep --set jps=1 --set step_times=band --out OUT", "not in a sweep; give step_times=low,mid,high as points of"),
    ("step-times build --gpu h100-80gb --model qwen3-8b --name x", "--name x: only for a config.json; qwen3-8b has"),
    ("step-times build --gpu h100 --model qwen3-8b --tp 3", "--tp 3: there are 1, 2, 4, 8"),
]


@pytest.mark.parametrize(("command", "said"), COMMANDS)
def test_a_mistake_is_named(command: str, said: str, words: dict[str, str], tmp_path: Path) -> None:
    if "--out RUNS" in command:
        (Path(words["RUNS"]) / "manifest.json").write_text("{}")
    assert said in mistake(command, words, tmp_path / "out")


FORMS = {
    "--arrivals": ["", "uniform", "gamma", "gamma:x", "gamma:0", "gamma:nan", "ramp:1", "poisson:2"],
    "--tool-times": ["", "slow", "recorded:1", "constant", "constant:x", "constant:-1", "constant:inf", "shift:10:2"],
    "--tool-times ": ["bimodal:0.8:60", "bimodal:0.8:60:1", "bimodal:80:1:60", "shift:0", "hang:15", "hang:0.1:2:3"],
    "--hints tool_s --hint-error": [
        "",
        "x",
        "-1",
        "nan",
        "11",
        "adversarial:2",
        "adversarial:x",
        "adversarial:.5:loud",
    ],
    "--replicas 2 --kill-replica": ["soon", "1@", "-1@5", "1@nan"],
    "--base-url URL --length-scale 0.01 --warm-up": ["many", "-1", "3m"],
}
"""Options whose text has a form, and texts of another form."""


@pytest.mark.parametrize(("option", "text"), [(option, text) for option, texts in FORMS.items() for text in texts])
def test_a_text_of_another_form_is_refused(option: str, text: str, words: dict[str, str], tmp_path: Path) -> None:
    said = mistake(f"swebench --out OUT {option.strip()} {text}", words, tmp_path / "out")
    assert said.startswith(f"{option.split()[-1]} {text}: ")


GRIDS = [
    ("jps: [0.1", "grid.yaml:1: not YAML"),
    ("- jps", "expected a mapping of axes to values"),
    ("moon: 1", "moon: unknown; a grid has name, engine"),
    ("jps: true", "jps: True is no value of this option; expected float"),
    ("jps: []", "jps: an empty list"),
    ("jps: [1, 1]", "jps: 1 is given twice"),
    ("chunk_tokens: 0.5", "chunk_tokens: 0.5 is no value of this option; expected int"),
    ("tool_times: [recorded, 'shift:x']", "tool_times: shift:x: 'x': expected shift:FACTOR"),
    ("arrivals: [poisson, 'gamma:0']", "arrivals: gamma:0: expected a number above 1e-06"),
    ("seeds: 0", "seeds: 0 is not a whole number of at least 1"),
    ("seed: [0, -1]", "seed: -1 is not a whole number of at least 0"),
    ("{seed: 1, seeds: 2}", "seeds: give seed (which) or seeds (how many), not both"),
    ("policy: moon", "policy: unknown policy 'moon'"),
    ("policy: [vllm, {options: {}}]", "policy[1]: expected a policy's name"),
    ("policy: {policy: static-ttl, options: {moon: 1}}", "policy: policy 'static-ttl' has no option 'moon'"),
    ("policy: {policy: continuum, options: {statistics: absent}}", "policy: policy 'continuum': option statistics"),
    ("policy: [vllm, {policy: vllm}]", "policy: 'vllm' is given twice; give one of them a label"),
    ("policy: {policy: vllm, label: a/b}", "label: 'a/b' names a folder"),
    ("workload: absent.jsonl", "workload: 'absent.jsonl' is no file, nor one of swebench"),
    ("engine: moon", "engine: 'moon'; there are virtual, emulated, cpu, gpu"),
    ("cases: {}", "cases: expected a list of mappings"),
    ("cases: [{jps: 1}, {engine: cpu}]", "cases[1]: engine: unknown in a case"),
    ("cases: [{tool_times: 3}]", "cases[0]: tool_times: 3: there are recorded"),
    ("plot: 3", "plot: expected a mapping"),
    ("arrivals: 'concurrency:4'", "arrivals: concurrency:4 needs a server; give engine emulated, cpu, gpu"),
    ("engine: gpu\npp: [1, 2]", "pp: only for engine virtual"),
    ("engine: emulated\npolicy: vllm+offload", "policy: vllm+offload: only for engine virtual"),
]


@pytest.mark.parametrize(("text", "said"), GRIDS)
def test_a_mistake_in_a_grid_is_named_with_its_field(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(text)
    line = mistake("sweep GRID --out OUT", {"GRID": str(tmp_path / "grid.yaml")}, tmp_path / "out")
    assert line.startswith(str(tmp_path / "grid.yaml"))
    assert said in line


@pytest.mark.parametrize("text", [None, "{}", '{"schema": "x"}', "{"])
def test_files_that_a_policy_reads_are_read_before_the_engine_starts(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tool_statistics.json"
    if text is not None:
        file.write_text(text)
    for command in ("swebench --policy continuum", "serve --port 0 --policy continuum"):
        said = mistake(f"{command} --policy-option continuum.statistics={file}", {}, tmp_path / "out")
        assert f"option statistics = {file}: " in said


@pytest.mark.parametrize(
    "command",
    [
        "compare . --fail-if jct_mean>1 --junit FILE",
        "compare . --format csv --out FILE",
        "analyze . --out FILE",
        "traces synth FILE",
        "profile --out FILE",
        "validate log.jsonl --report FILE",
    ],
)
def test_a_file_that_cannot_be_written_is_found_first(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "missing" / "x", tmp_path / "file" / "x", tmp_path):
        said = mistake(command, {"FILE": str(wrong)}, tmp_path / "out")
        assert f"{wrong}: cannot write there; name a file in a folder that exists" in said
