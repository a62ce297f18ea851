"""``traces import-log``: request logs as the tools write them, and a replay that must agree with itself."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_cli import succeeded
from continuum_analysis.metrics import analyze_run
from continuum_bench.options.traces import ImportLogOptions
from continuum_bench.request_logs.import_log import experiment_of
from continuum_bench.request_logs.logs import read_log
from continuum_bench.request_logs.served import LoggedRun
from continuum_bench.virtual.engine_options import engine_of
from continuum_server.virtual.config import times_of
from continuum_traces.records.run_dir import read_manifest
from logged_runs import fit_lines, play

ROWS = [(0.0, 0.2, 1.2, 100, 11), (0.5, 0.9, 2.0, 200, 21), (0.7, 1.0, 1.0, 30, 1)]
"""Arrival, first token, end; prompt and output tokens."""
MEASURED_RUN = Path(__file__).parents[3] / "shared" / "validation" / "llmservingsim" / "RTXPRO6000_Llama-3.1-8B"
OPTIONS = ["--gpu", "h100", "--model", "llama-3.1-8b"]


def write(path: Path, *objects: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, objects)), encoding="utf-8")
    return path


def only(path: Path) -> LoggedRun:
    (run,) = read_log(path)
    return run


SAMPLES = Path(__file__).with_name("samples")
"""These requests, and one that failed, as each tool logs them; and sessions of aiperf."""
BENCH, SIMULATOR = "vllm-bench/bench.json", "llmservingsim/requests.jsonl"
AIPERF, GUIDELLM = "aiperf/profile_export.jsonl", "guidellm/benchmarks.json"


def changed(name: str, **fields: Any) -> str:
    """Return a sample file. These fields of its second line, or of its only line, have other values."""
    lines = (SAMPLES / name).read_text().splitlines()
    at = min(1, len(lines) - 1)
    lines[at] = json.dumps(json.loads(lines[at]) | fields)
    return "\n".join(lines)


def replaced(name: str, old: str, new: str) -> str:
    """A sample with another text in one place."""
    return (SAMPLES / name).read_text().replace(old, new, 1)


@pytest.mark.parametrize("tool", ["llmservingsim", "aiperf", "guidellm", "vllm-bench", "own-run"])
def test_every_format_says_the_same(tool: str) -> None:
    run = only(SAMPLES / tool)
    found = [(r.arrival_s, r.first_token_s, r.finish_s, r.prompt_tokens, r.output_tokens) for r in run.served]
    assert found == [pytest.approx(row, abs=1e-5) for row in ROWS]
    assert run.unreported.get("failed", 0) == (tool != "vllm-bench")


def test_facts_of_the_server_are_in_the_log_or_beside_it() -> None:
    server = only(SAMPLES / SIMULATOR).server
    found = (server.vllm, server.model, server.max_num_seqs, server.pp, server.kv_cache_dtype, server.kv_blocks)
    assert found == ("0.19.0", "meta-llama/Llama-3.1-8B", 64, 2, "fp8", 2100)
    assert server.enable_prefix_caching is False
    assert only(SAMPLES / "own-run").server.vllm == "0.26.0"
    assert only(SAMPLES / GUIDELLM).server.model == only(SAMPLES / BENCH).server.model == "Qwen/Qwen3-14B"


def test_the_experiment_is_set_as_the_log_says(tmp_path: Path) -> None:
    run = only(SAMPLES / SIMULATOR)
    options = experiment_of(run, ImportLogOptions(source=tmp_path, target=tmp_path, gpu="h100"))
    assert (options.kv_blocks, options.max_num_seqs, options.pp, options.vllm) == (2100, 64, 2, "0.19.0")
    assert (options.no_prefix_caching, options.model) == (True, "llama-3.1-8b+fp8-kv")


@pytest.mark.parametrize(("gpu", "seqs", "chunk"), [("l40s", 256, 2048), ("a100", 256, 2048), ("h100", 512, 8192)])
def test_vllms_defaults_depend_on_the_gpu(gpu: str, seqs: int, chunk: int, tmp_path: Path) -> None:
    given = ImportLogOptions(source=tmp_path, target=tmp_path, gpu=gpu, model="llama-3.1-8b")
    options = experiment_of(only(SAMPLES / BENCH), given)
    assert (options.max_num_seqs, options.chunk_tokens) == (seqs, chunk)


def test_vllm_bench_with_failed_and_empty_answers(tmp_path: Path) -> None:
    for errors in (["", "Service Unavailable", ""], ["", None, ""], None):
        times = {"ttfts": [0.1, 0.0, 0.2], "itls": [[0.02, 0.03], [], []]}
        (tmp_path / "vllm-4.0qps.json").write_text(changed(BENCH, output_lens=[3, 0, 0], errors=errors, **times))
        run = only(tmp_path / "vllm-4.0qps.json")
        assert run.name == "vllm-4.0qps (4 requests/s)"
        assert run.unreported == {"failed": 1, "without output": 1}
        assert [(each.arrival_s, each.prompt_tokens) for each in run.load] == [(pytest.approx(0.7), 30)]
        assert run.served[0].finish_s == pytest.approx(0.15)


def test_aiperf_phases_and_sessions() -> None:
    run = only(SAMPLES / "aiperf-sessions")
    assert [each.arrival_s for each in run.served] == pytest.approx([1.0, 3.0, 4.0])
    assert [each.program_id for each in run.served] == ["one", None, "one"]
    assert [each.gap_s for each in run.served] == pytest.approx([2.0, 0.0, 0.0])
    assert run.unreported == {"warm-up": 1, "without output": 1}
    assert [each.arrival_s for each in run.load] == pytest.approx([0.0, 2.0])


def test_guidellm_counts_what_it_left_out(tmp_path: Path) -> None:
    run = only(SAMPLES / GUIDELLM)
    assert run.name == "benchmark 0 (constant, rate 4.0)"
    assert (run.unreported, [each.output_tokens for each in run.load]) == ({"cut off": 1, "failed": 1}, [6])
    log = json.loads(replaced(GUIDELLM, '"successful": 3', '"successful": 11'))
    log["benchmarks"][0]["requests"]["successful"] *= 3
    assert only(write(tmp_path / "b.json", log)).unreported["not in the log"] == 2


def test_a_folder_holds_several_logs(tmp_path: Path) -> None:
    """Every log in it and in its folders; JSON of other kinds is left alone, and results may be appended."""
    folder = tmp_path / "results"
    shutil.copytree(SAMPLES / "aiperf", folder / "aiperf")
    write(folder / "aiperf" / "inputs.json", {"data": []})
    (folder / "sweep.json").write_text("\n".join(changed(BENCH, request_rate=rate) for rate in (2.0, "inf", "inf")))
    write(folder / "qps2.pytorch.json", {"metric": "Latency"})
    with gzip.open(folder / "z.json.gz", "wt", encoding="utf-8") as file:
        file.write(changed(BENCH, request_rate=3.0, max_concurrency=8))
    (folder / "notes.txt").write_text("no log", encoding="utf-8")
    names = ["aiperf", "sweep (2 requests/s)", "sweep, number 3", "sweep, number 4"]
    assert [run.name for run in read_log(folder)] == [*names, "z (3 requests/s, at most 8 at once)"]


def test_answers_of_one_token_and_several_runs_of_a_log(tmp_path: Path) -> None:
    columns = {"start_times": [0.0] * 4, "ttfts": [0.2] * 4, "itls": [[]] * 4, "input_lens": [90] * 4}
    for name in ("a.json", "b.json"):
        write(tmp_path / "logs" / name, {**columns, "output_lens": [1] * 4})
    done = succeeded("traces", "import-log", tmp_path / "logs", tmp_path / "out", *OPTIONS)
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["a", "b"]
    assert done.stdout.count("continuum-bench compare") == 2
    assert analyze_run(tmp_path / "out" / "a" / "measured").values["tpot_mean_s"] is None


def imported(log: Path, out: Path, *options: object) -> tuple[Path, Path]:
    """The folders of the measured run, and of the modelled run that the printed command plays."""
    done = succeeded("traces", "import-log", log, out, *options)
    command, compare = done.stdout.splitlines()
    succeeded(*command.removeprefix("continuum-bench ").split(" "), "--set", "quiet=true")
    table = succeeded(*compare.removeprefix("continuum-bench ").split(" ")).stdout
    assert "measured" in table
    assert "vllm" in table
    return out / "measured", out / "modelled" / "vllm-seed0"


def test_a_replay_of_a_modelled_run_has_no_error(tmp_path: Path) -> None:
    """What the model says of a log is written as a log; imported and played again it is exact. A fit finds nothing to
    mend."""
    log, size = tmp_path / "bench.json", 24
    lengths = {"input_lens": [900 + 30 * n for n in range(size)], "output_lens": [20 + n for n in range(size)]}
    starts = [0.05 * n for n in range(size)]

    def write_times(ttfts: list[float], ends: list[float]) -> None:
        itls = [[end - ttft] for ttft, end in zip(ttfts, ends, strict=True)]
        write(log, {"start_times": starts, "ttfts": ttfts, "itls": itls, **lengths})

    write_times([0.1] * size, [0.5] * size)
    run = only(log)
    config = engine_of(experiment_of(run, ImportLogOptions(source=log, target=log, gpu="h100", model="llama-3.1-8b")))[
        0
    ]
    modelled = play(run, config, times_of(config), asynchronous=True)
    write_times([r.first_token_s - r.arrival_s for r in modelled], [r.finish_s - r.arrival_s for r in modelled])
    values = [analyze_run(folder).values for folder in imported(log, tmp_path / "out", *OPTIONS)]
    for name in ("jct_mean_s", "ttft_mean_s", "tpot_mean_s", "jct_p99_s"):
        assert values[0][name] == pytest.approx(values[1][name], abs=1e-6)
    sooner = play(run, config, times_of(config), asynchronous=False)
    assert sum(r.first_token_s for r in sooner) < sum(r.first_token_s for r in modelled)
    fitted, errors = fit_lines(log, "h100", "llama-3.1-8b")
    assert "+0.00 ms a step, attention x 1.00" in fitted
    assert "e2e_mean +0.0%" in errors


def test_requests_without_times_are_load_and_are_kept_apart(tmp_path: Path) -> None:
    measured, modelled = imported(SAMPLES / "aiperf-sessions", tmp_path / "out", *OPTIONS)
    for folder, finished in ((measured, 2), (modelled, 4)):
        facts = analyze_run(folder).facts
        outcomes = sorted(str((each.metadata or {})["outcome"]) for each in facts.programs)
        assert outcomes.count("answered") == 2
        assert len(outcomes) == finished
    notes = read_manifest(measured).notes
    assert set(notes) == {f"1 requests: {why}; their times are not known" for why in ("warm-up", "without output")}


@pytest.mark.slow
def test_a_real_server_is_within_the_claim(tmp_path: Path) -> None:
    if not MEASURED_RUN.exists():
        pytest.skip("the log is beside this checkout")
    folders = imported(MEASURED_RUN, tmp_path / "out", "--gpu", "rtx-pro-6000")
    measured, modelled = (analyze_run(folder).values for folder in folders)
    for name, limit in (("jct_mean_s", 0.05), ("ttft_mean_s", 0.05), ("tpot_mean_s", 0.05), ("jct_p99_s", 0.1)):
        assert modelled[name] == pytest.approx(measured[name], rel=limit)
