"""Every mistake that a user can make, of every command: one line that says what is wrong, exit code 2, no work done."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench, refused
from continuum_bench.lock import locked
from fake_server import FakeServer, good
from recorded_runs import write_recorded
from small_replays import trace_of

from continuum_client import instrument_command, proxy_command

ROW = '{"program_id": "p", "prompt_tokens": 100, "output_tokens": 5}'
GIVEN = {"RUNS": "runs", "BEGUN": "begun", "SWEEP": "begun/sweep", "BAD": "bad", "TABLE": "table.jsonl", "FILE": "file"}
GIVEN |= {"LOG": "log.json", "NO": "no", "TOOLLESS": "toolless.jsonl", "INTO_FILE": "file/new", "FOLDER": "."}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for a file, a folder, an address or a port in the tables below."""
    folder = tmp_path_factory.mktemp("given")
    for seed in range(2):
        write_recorded(folder / "runs" / f"vllm-seed{seed}", "vllm", seed, [10.0, 11.0])
    (folder / "begun" / "sweep").mkdir(parents=True)
    (folder / "begun" / "sweep" / "sweep.json").write_text("{}")
    for name, text in (
        ("begun/manifest.json", "{}"),
        ("bad", "{nonsense"),
        ("table.jsonl", "{}"),
        ("file", ""),
        ("toolless.jsonl", ROW),
    ):
        (folder / name).write_text(text)
    log = '{"start_times": [0, 0], "ttfts": [1, 1], "itls": [[1], [1]], "input_lens": [90, 9], "output_lens": [2, 2]}'
    (folder / "log.json").write_text(log)
    with FakeServer("vllm", handler=good) as server, socket.create_server(("127.0.0.1", 0)) as other:
        yield {
            **{word: str(folder / name) for word, name in GIVEN.items()},
            "TRACE": str(trace_of(folder)),
            "URL": server.url,
            "TAKEN": str(other.getsockname()[1]),
        }


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a server would have been started")

    monkeypatch.setattr("continuum_server.launcher.subprocess.Popen", start)


def refusal(command: str, words: dict[str, str], out: Path) -> str:
    """The one line that a command says."""
    known = {**words, "OUT": str(out)}
    first, *given = shlex.split(command)
    said = refused(first, *(known.get(word, word) for word in given))
    assert not out.exists()
    return said


COMMANDS = [
    # a run
    ("replay absent.jsonl", "absent.jsonl: cannot read"),
    ("replay TABLE --out INTO_FILE", "table.jsonl: format not recognised"),
    ("replay TRACE --out INTO_FILE", "cannot create"),
    ("swebench --jps 0", "--jps 0: programs per second must be above 0"),
    ("swebench --policy ,", "names no policy; there are vllm"),
    ("swebench --policy wrking-set", "did you mean working-set"),
    ("swebench --policy-option moon", "expected POLICY.OPTION=VALUE"),
    ("swebench --policy vllm --policy-option continuum.x=1", "'continuum' is not in this run"),
    ("swebench --gpu h100-80g", "unknown GPU 'h100-80g'; did you mean h100-80gb"),
    ("swebench --model llama-3.1-70b", "does not fit 1 x h100-80gb"),
    ("swebench --chunk-tokens 16", "below max_num_seqs"),
    ("swebench --offload dram", "--offload 'dram': expected dram-100, dram-200"),
    ("swebench --hint-error 1", "--hint-error: needs --hints"),
    ("swebench --router sticky", "--router: needs --replicas"),
    ("swebench --replicas 2 --router hash", "router = hash: there are affinity, sticky"),
    ("swebench --jps 1 --arrivals recorded:2", "--jps: not with --arrivals: these arrivals have a rate of"),
    ("swebench --tool-times shift:1e8", "the arrivals and tool times of a run take"),
    ("replay TOOLLESS --tool-times constant:5", "--tool-times constant:5: the programs call no tools"),
    # servers
    ("swebench --base-url http://x/v1 --offload dram-1", "--offload: not with --base-url: the server decides that"),
    ("swebench --step-times HIGH", "did you mean high"),
    ("swebench --base-url http://x/v1 --scheduler-records NO", "no: no such folder"),
    ("swebench --base-url localhost", "expected http:// or https://"),
    ("swebench --base-url http://127.0.0.1:9/v1", "no OpenAI-compatible server answers"),
    ("swebench --base-url http://127.0.0.1:99999/v1", "--base-url http://127.0.0.1:99999/v1: Port out of"),
    ("swebench --base-url http://me:secret@x/v1", "a key comes from OPENAI_API_KEY"),
    ("replay TRACE --base-url URL --dialect x", "there are headers, vllm"),
    ("replay TRACE --base-url URL --served-model x", "the server has m"),
    ("replay TRACE --base-url URL --arrivals concurrency:2 --processes 3", "more than the 2 programs at a"),
    ("swebench --arrivals concurrency:2 --cool-down 3s", "seconds in a closed loop need --time-limit-s"),
    ("swebench --arrivals steps:0", "--arrivals steps:0: expected steps:PROGRAMS or steps:PROGRAMS:PAUSE_SECONDS"),
    ("replay TRACE --base-url URL --warm-up 2 --cool-down 1", "no program is left to count"),
    ("serve --port 0 --statistics BAD", "bad: not JSON: "),
    ("serve --port 0 --statistics TABLE", "table.jsonl: not continuum-tool-statistics version 1: "),
    ("profile --out OUT --repeats 9", "--repeats: needs --base-url"),
    # traces
    ("traces synth OUT --profile swebenc", "no profile of that name; did you mean swebench"),
    ("traces stats FILE --format continum", "did you mean continuum"),
    ("traces synth OUT --mix chat:0.5,swebench:0.6", "add up to 1"),
    ("traces synth OUT --mix chat:0.5,chat:0.5", "different kinds"),
    ("traces synth OUT --mix chat:-1,swebench:2", "above 0"),
    ("traces synth OUT --mix chat", "KIND:SHARE"),
    ("traces convert x OUT --to preview", "converts a run directory"),
    ("traces convert . OUT --to preview --format otel", "--format: not with --to: --format is for traces"),
    ("traces convert FILE OUT --to moncake", "did you mean mooncake? there are continuum, agentic-mooncake, mooncake"),
    # recorded runs
    ("analyze NO", "holds neither"),
    ("analyze RUNS --json --table pins", "--json: not with --table: --format json writes a table as JSON"),
    ("analyze RUNS --table cats", "--table cats: there are runs, misses, programs, turns, by-turn, pins"),
    ("analyze RUNS --misses --table pins", "--misses: not with --table: --table misses is the table of them"),
    ("analyze RUNS --table runs --format parquet", "name a file with --out"),
    ("compare RUNS --format markdwn", "did you mean markdown? there are csv, parquet, json, latex, markdown"),
    ("compare RUNS --baseline vlm", "no run of it; did you mean vllm? there are vllm"),
    ("compare RUNS RUNS", "runs: given twice"),
    ("compare NO", "no: no such file or directory"),
    ("compare RUNS --junit OUT", "--junit: needs --fail-if"),
    ("compare RUNS --fail-if jct_mean>1 --format csv", "--fail-if: not with --format: write the table"),
    ("compare RUNS --fail-if 'jct_men > 1' --point-estimate", "did you mean jct_mean_s"),
    (f"compare RUNS --fail-if jct_mean>{10**400}", "--fail-if jct_mean>1000"),
    (f"compare RUNS --fail-if '{'(' * 300}'", "--fail-if ((("),
    ("compare RUNS --fail-if thunder:jct_mean>1", "no run of thunder; there are"),
    # figures, sweeps, step times, logs of other servers
    ("figure goodputt", "figure goodputt: did you mean goodput? there are ablation"),
    ("figure ablation --traces absent.jsonl", "no file"),
    ("figure ablation --set moon=1", "moon: unknown"),
    ("figure tool-times --limit 2", "figure tool-times: --limit 2: only for figure goodput"),
    ("figure tool-times --set jps=1", "figure tool-times: --set jps=1: this figure has no grid"),
    ("figure goodput --dry-run", "dry-run: this figure has no cells"),
    ("sweep", "give a grid"),
    ("sweep absent.yaml", "absent.yaml: cannot read"),
    ("sweep --set jps", "expected AXIS=VALUE"),
    ("sweep --set jps=[", "--set jps=[: not YAML: "),
    ("sweep --set num_program=3", "did you mean num_programs"),
    ("sweep --set jps=1 --out BEGUN", "holds a run already"),
    ("replay TRACE --out SWEEP", "holds a sweep already; choose another --out"),
    ("sweep --set jps=1 --set step_times=band", "step_times: band: there are low, mid, high"),
    ("step-times build --gpu h100-80gb --model qwen3-8b --name x", "--name x: only for a config.json; qwen3-8b has"),
    ("step-times build --gpu h100 --model qwen3-8b --tp 3", "--tp 3: there are 1, 2, 4, 8"),
    ("validate LOG --gpu h100 --model qwen3-8b --kv-blocks 3", "(by arrival): 92 tokens do not fit"),
    ("validate LOG --gpu h100 --model qwen3-8b --fit", "--fit needs at least 4 requests; there are 2"),
    # top
    ("top --base-url http://127.0.0.1:9/v1 --once", "no server answers"),
    ("top --base-url http://127.0.0.1:9/v1", "the output is no terminal; use --once"),
    ("top --base-url http://127.0.0.1:9/v1 --json", "--json: needs --once"),
    # experiment files
    ("run missing.yaml", "missing.yaml: cannot read: No such file or directory\n"),
    ("run TABLE --set sede=1", "--set sede=1: no such option; did you mean seed?\n"),
    ("run TABLE --set policy=", "--set policy=: expected NAME=VALUE; null is the default\n"),
]
SERVE = [
    ("--port TAKEN", "port TAKEN of 127.0.0.1 is taken"),
    ("--port 99999", "--port 99999: must be at most 65,535"),
    ("--host nowhere.invalid", "host nowhere.invalid, port 0: cannot listen there: "),
    ("--engine cpu --time-scale 2", "--time-scale: needs --engine emulated"),
    ("--max-ttl-s -1.0", "--max-ttl-s -1.0: must be a number from 0 to 1000000000000\n"),
    ("--additional-config {}", "--additional-config: Continuum passes its settings in this option; "),
    ("--api-key A --api-key B", "several keys are --api-key A B"),
    ("--policy nowhere:Mine", "policy nowhere:Mine: cannot import it"),
    ("--record INTO_FILE", ": cannot "),
    ("--log INTO_FILE", ": cannot "),
    ("--statistics INTO_FILE", ": cannot "),
    ("--engine moon", "unknown engine 'moon'; there are: gpu, emulated, cpu"),
    ("--engine gpu", "engine gpu needs a model: a folder or a name that vLLM can load"),
    ("--engine gpu --model FOLDER", ": that folder has no config.json"),
    ("--engine gpu --model INTO_FILE", "new: no such folder"),
    ("--profile BAD", "bad: not JSON: "),
    ("--replies BAD", "bad:1: not JSON: "),
    ("--max-num-seqs 300 --chunk-tokens 200", "200 tokens of a step are fewer than 300 running requests"),
    ("--policy stock --policy-option continuum.x=1", "--policy-option continuum.x=1: policy stock is vLLM's own"),
    ("--kv-blocks 1200 --max-model-len 19185", "a prompt plus output of 19185 tokens does not fit 1200 KV blocks"),
]
"""Of ``serve``, alone and with replicas."""


@pytest.mark.parametrize(("command", "said"), COMMANDS)
def test_a_mistake_is_one_line(command: str, said: str, words: dict[str, str], tmp_path: Path) -> None:
    plays = command.startswith(("swebench", "replay", "figure")) and "--out" not in command
    assert said in refusal(command + " --out OUT" * plays, words, tmp_path / "out")


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("replicas", ["", " --replicas 2"])
@pytest.mark.parametrize(("options", "said"), SERVE)
def test_a_server_is_not_started(options: str, said: str, replicas: str, words: dict[str, str], tmp_path: Path) -> None:
    port = "" if "--port" in options else " --port 0"
    more = "" if "--replicas" in options + said else replicas
    found = refusal(f"serve {options}{port}{more}", words, tmp_path / "out")
    assert said.replace("TAKEN", words["TAKEN"]) in found


TOOLS = [
    ("continuum-proxy --upstream ftp://x -- true", "'ftp://x': expected a URL"),
    ("continuum-proxy --upstream 127.0.0.1:99999 -- true", "'127.0.0.1:99999': expected a URL"),
    ("continuum-proxy --upstream x", "expected either -- COMMAND ... or --listen"),
    ("continuum-proxy --upstream x --program p --listen 127.0.0.1:0", "--program is for a COMMAND"),
    ("continuum-proxy --upstream x --listen 9000", "'9000': expected HOST:PORT"),
    ("continuum-proxy --upstream x --listen 127.0.0.1:TAKEN", "already in use"),
    ("continuum-instrument --dialect vlm python", "invalid choice: 'vlm'"),
]


@pytest.mark.parametrize(("command", "said"), TOOLS)
def test_the_client_s_commands_end_with_it(
    command: str, said: str, words: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *given = command.replace("TAKEN", words["TAKEN"]).split()
    with pytest.raises(SystemExit) as ended:
        (proxy_command if name == "continuum-proxy" else instrument_command).main(given)
    assert (ended.value.code, said in capsys.readouterr().err.splitlines()[-1]) == (2, True)


FORMS = [
    ("--arrivals", "'' uniform gamma gamma:x gamma:0 gamma:nan gamma:1e23 gamma:1e-300 ramp:1 ramp:inf poisson:2"),
    ("--arrivals", "ramp:1e23 recorded:1e23"),
    (
        "--tool-times",
        "'' slow recorded:1 constant constant:x constant:-1 constant:inf constant:1e23 shift:10:2",
    ),
    ("--tool-times", "bimodal:0.8:60 bimodal:0.8:60:1 bimodal:80:1:60 bimodal:0.5:1:1e23 shift:1e300"),
    ("--tool-times", "shift:0 hang:15 hang:0.1:2:3 hang:0.5:1e23 hang:nan"),
    ("--hints tool_s --hint-error", "'' x -1 nan 11 adversarial:2 adversarial:x adversarial:.5:loud"),
    ("--base-url URL --length-scale 0.01 --warm-up", "many -1 3m"),
    ("--base-url URL --arrivals", "concurrency:4:1e23"),
]
"""Options whose text has a form, and texts of another form or with absurd numbers: a clock of floats would stand still
with them, and the run would never end."""


@pytest.mark.parametrize(("option", "text"), [(option, text) for option, texts in FORMS for text in shlex.split(texts)])
def test_a_text_of_another_form_is_refused(option: str, text: str, words: dict[str, str], tmp_path: Path) -> None:
    said = refusal(f"swebench --num-programs 4 --out OUT {option} '{text}'", words, tmp_path / "out")
    assert said.startswith(f"{option.split()[-1]} {text}: ")


FILES = [
    ("run", "jps: 0.1\nnum-program: 3", ":2: num-program: no such option; did you mean num_programs?"),
    ("run", "jps: 0.1\n\nseeds: five", ":3: seeds: 'five' is no value of this option; expected int"),
    ("run", "seeds: 0", ":1: seeds: 0: must be at least 1"),
    ("run", "seeds: 1\nseeds: 2", ":2: seeds: is given twice"),
    ("run", "workload: no.jsonl", ":1: workload: 'no.jsonl' is no file, nor a workload; there are swebench"),
    ("run", "jps: 1\0", ": not YAML: unacceptable character #x0000"),
    ("run", "hint_error: yes", ":1: hint_error: True is no value of this option; expected str"),
    ("run", "- 1", ": expected a mapping of options to values"),
    ("run", "jps: 1\nlabel: new", ":2: label: needs --base-url"),
    # every value is read when the file is: no fault waits until the engine is built
    ("run", "jps: 1\narrivals: sometimes", ":2: arrivals: sometimes: there are poisson"),
    ("run", "jps: 1\npolicy_option: continuum.x=1", ":2: policy_option: policy 'continuum' has no option 'x'"),
    ("run", "jps: 1\noffload: ram", ":2: offload: 'ram': expected dram-100"),
    ("run", "jps: 1\nprofile: none.json", ":2: profile: none.json: cannot read"),
    ("sweep", "jps: [0.1", ":1: not YAML"),
    ("sweep", "- jps", "expected a mapping of axes to values"),
    ("sweep", "moon: 1", "moon: unknown; a grid has name, engine"),
    ("sweep", "jps: []", "jps: an empty list"),
    ("sweep", "jps: [1, 1]", "jps: 1 is given twice"),
    ("sweep", "tool_times: [recorded, 'shift:x']", "tool_times: shift:x: 'x': expected shift:FACTOR"),
    ("sweep", "seed: [0, -1]", "Expected `int` >= 0 - at `$.seed[1]`"),
    ("sweep", "{seed: 1, seeds: 2}", "seeds: give seed (which) or seeds (how many), not both"),
    ("sweep", "policy: [vllm, {options: {}}]", "policy[1]: Object missing required field `policy`"),
    ("sweep", "policy: {policy: vllm, label: a/b}", "label: 'a/b' names a folder"),
    ("sweep", "policy: [vllm, {policy: vllm}]", "policy: 'vllm' is given twice; give one of them a label"),
    ("sweep", "workload: absent.jsonl", "workload: 'absent.jsonl' is no file, nor a workload; there are swebench"),
    ("sweep", "engine: moon", "engine: 'moon'; there are virtual, emulated, cpu, gpu"),
    ("sweep", "cases: {}", "Expected `array`, got `object` - at `$.cases`"),
    ("sweep", "cases: [{jps: 1}, {engine: cpu}]", "cases[1]: engine: unknown in a case"),
    ("sweep", "plot: 3", "Expected `object`, got `int` - at `$.plot`"),
    ("sweep", "engine: gpu\npp: [1, 2]", "pp: only for engine virtual"),
    ("sweep", "engine: emulated\npolicy: vllm+offload", "policy: vllm+offload: only for engine virtual"),
]


@pytest.mark.parametrize(("command", "text", "said"), FILES)
def test_a_mistake_in_a_file_is_named_with_its_place(command: str, text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(text)
    line = refusal(f"{command} {file}", {}, tmp_path / "out")
    assert line.startswith(str(file))
    assert said in line


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("text", [None, "{}", "{"])
@pytest.mark.parametrize("command", ["swebench", "serve --port 0"])
def test_files_that_a_policy_reads_are_read_before_the_engine_starts(
    tmp_path: Path, command: str, text: str | None
) -> None:
    file = tmp_path / "tool_statistics.json"
    if text is not None:
        file.write_text(text)
    options = f"--policy continuum --policy-option continuum.statistics={file}"
    assert f"option statistics = {file}: " in refusal(f"{command} {options}", {}, tmp_path / "out")


@pytest.mark.parametrize("wrong", ["missing/x", "file/x", ""])
def test_a_file_that_cannot_be_written_is_found_first(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(f"profile --out {tmp_path / wrong}", {}, tmp_path / "out")
    assert f"{tmp_path / wrong}: cannot write there; name a file in a folder that exists" in said


@pytest.mark.parametrize(
    "command", ["replay TRACE", "replay TRACE --base-url URL", "sweep --set num_programs=1", "figure ablation"]
)
def test_two_commands_do_not_write_into_one_folder(command: str, words: dict[str, str], tmp_path: Path) -> None:
    with locked(tmp_path):
        name, *given = command.split()
        done = bench(name, *(words.get(word, word) for word in given), "--out", tmp_path)
    assert done.exit_code == 2
    assert "another run is writing there; choose another --out\n" in done.stderr
