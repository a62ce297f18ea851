"""``validate``: request logs as the tools write them, bad logs, and a replay that must agree with itself."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_cli import succeeded
from continuum_bench.options.validate import ValidateOptions
from continuum_bench.validate.command import engine_of
from continuum_bench.validate.logs import read_log
from continuum_bench.validate.replay import play
from continuum_bench.validate.served import LoggedRun
from continuum_server.virtual.config import times_of

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


def test_an_option_replaces_what_the_log_says(tmp_path: Path) -> None:
    run = only(SAMPLES / SIMULATOR)
    config = engine_of(run, ValidateOptions(log=tmp_path, gpu="h100", kv_blocks=900, enable_prefix_caching=True))
    assert (config.kv_blocks, config.prefix_caching, config.max_num_seqs) == (900, True, 64)
    assert engine_of(run, ValidateOptions(log=tmp_path, gpu="h100")).kv_blocks == 2100


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


def validated(*arguments: object) -> Any:
    """The one run's errors."""
    done = succeeded("validate", *arguments, "--json")
    (found,) = json.loads(done.stdout)["runs"]
    return found


def test_answers_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    columns = {"start_times": [0.0] * 4, "ttfts": [0.2] * 4, "itls": [[]] * 4, "input_lens": [90] * 4}
    for name in ("a.json", "b.json"):
        write(tmp_path / name, {**columns, "output_lens": [1] * 4})
    done = succeeded("validate", tmp_path, *OPTIONS, "--fit", "--kv-blocks", 50)
    last = next(line for line in reversed(done.stdout.splitlines()) if "b" in line)
    assert [cell.strip() for cell in last.split("│")[1:-1]][3] == "-"
    assert "tpot_p50" not in done.stdout


def test_a_replay_of_a_modelled_run_has_no_error(tmp_path: Path) -> None:
    """What the model says of a log is written as a log; validated again it is exact. --fit finds nothing to mend."""
    log, size = tmp_path / "bench.json", 24
    lengths = {"input_lens": [900 + 30 * n for n in range(size)], "output_lens": [20 + n for n in range(size)]}
    starts = [0.05 * n for n in range(size)]

    def write_times(ttfts: list[float], ends: list[float]) -> None:
        itls = [[end - ttft] for ttft, end in zip(ttfts, ends, strict=True)]
        write(log, {"start_times": starts, "ttfts": ttfts, "itls": itls, **lengths})

    write_times([0.1] * size, [0.5] * size)
    run = only(log)
    config = engine_of(run, ValidateOptions(log=log, gpu="h100", model="llama-3.1-8b"))
    modelled = play(run, config, times_of(config), asynchronous=True)
    write_times([r.first_token_s - r.arrival_s for r in modelled], [r.finish_s - r.arrival_s for r in modelled])
    found = validated(log, *OPTIONS)
    assert found["kv_blocks"]["from"].startswith("computed")
    for name in ("e2e_mean_error", "ttft_mean_error", "tpot_mean_error", "e2e_p99_error"):
        assert found[name] == pytest.approx(0.0, abs=1e-6)
    sooner = play(run, config, times_of(config), asynchronous=False)
    assert sum(r.first_token_s for r in sooner) < sum(r.first_token_s for r in modelled)
    fitted = validated(log, *OPTIONS, "--kv-blocks", 3000, "--step-overhead-ms", 1, "--fit")
    assert fitted["requests"] == size // 2
    assert abs(fitted["e2e_mean_error"]) < 0.02


@pytest.mark.slow
def test_a_real_server_is_within_the_claim() -> None:
    if not MEASURED_RUN.exists():
        pytest.skip("the log is not in the repository")
    found = validated(MEASURED_RUN, "--gpu", "rtx-pro-6000")
    assert all(abs(found[f"{name}_mean_error"]) < 0.05 for name in ("e2e", "ttft", "tpot"))
    assert abs(found["e2e_p99_error"]) < 0.1
