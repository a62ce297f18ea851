"""Request logs as the tools write them: several runs in a file, requests that failed or were cut off, folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from continuum_bench.errors import BenchError
from continuum_bench.validate.logs import read_log
from continuum_bench.validate.served import LoggedRun


def vllm_result(**changed: Any) -> dict[str, Any]:
    """``vllm bench serve --save-detailed`` (0.23): a request that failed, one without output, one of one token."""
    return {
        "date": "20260801-101500",
        "backend": "vllm",
        "label": None,
        "model_id": "Qwen/Qwen3-14B",
        "tokenizer_id": "Qwen/Qwen3-14B",
        "num_prompts": 5,
        "request_rate": 4.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 3.0,
        "completed": 4,
        "failed": 1,
        "request_throughput": 1.3,
        "input_lens": [100, 200, 300, 400, 500],
        "output_lens": [3, 0, 0, 1, 2],
        "ttfts": [0.1, 0.0, 0.2, 0.3, 0.4],
        "itls": [[0.02, 0.03], [], [], [], [0.05]],
        "start_times": [1000.0, 1000.2, 1000.5, 1000.9, 1001.0],
        "generated_texts": ["a b c", "", "", "a", "a b"],
        "errors": ["", "Service Unavailable", "", "", ""],
        "max_output_tokens_per_s": 9.0,
        **changed,
    }


def write(path: Path, *objects: Any, apart: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(apart.join(map(json.dumps, objects)), encoding="utf-8")
    return path


def only(path: Path) -> LoggedRun:
    (run,) = read_log(path)
    return run


def lengths(run: LoggedRun) -> list[tuple[int, int]]:
    return [(each.prompt_tokens, each.output_tokens) for each in run.served]


def test_vllm_bench_with_failed_and_empty_answers(tmp_path: Path) -> None:
    run = only(write(tmp_path / "vllm-4.0qps.json", vllm_result()))
    assert run.name == "vllm-4.0qps (4 requests/s)"
    assert run.server.model == "Qwen/Qwen3-14B"
    assert lengths(run) == [(100, 3), (400, 1), (500, 2)]
    assert run.unreported == {"failed": 1, "without output": 1}
    assert [(each.arrival_s, each.prompt_tokens, each.output_tokens) for each in run.load] == [(0.5, 300, 1)]
    assert run.served[0].finish_s == pytest.approx(0.15)


def test_vllm_bench_says_nothing_where_an_answer_failed_without_a_message(tmp_path: Path) -> None:
    run = only(write(tmp_path / "a.json", vllm_result(errors=["", None, "", "", ""])))
    assert run.unreported == {"failed": 1, "without output": 1}
    assert only(write(tmp_path / "b.json", vllm_result(errors=[""] * 5))).unreported["failed"] == 1


def test_appended_results_are_runs(tmp_path: Path) -> None:
    rates = [vllm_result(request_rate=rate) for rate in (2.0, 4.0, "inf")]
    found = read_log(write(tmp_path / "sweep.json", *rates))
    assert [run.name for run in found] == ["sweep (2 requests/s)", "sweep (4 requests/s)", "sweep"]
    assert [lengths(run) for run in found] == [lengths(found[0])] * 3


def test_vllm_bench_without_arrivals(tmp_path: Path) -> None:
    """At an infinite rate they are known: at once, or when one of the others ends."""
    old = vllm_result(request_rate="inf", errors=[""] * 5, output_lens=[3, 4, 5, 6, 7], itls=[[0.5]] * 5)
    old["ttfts"], old["start_times"] = [0.5, 1.0, 0.2, 0.3, 0.4], None
    assert {each.arrival_s for each in only(write(tmp_path / "a.json", old)).served} == {0.0}
    run = only(write(tmp_path / "b.json", {**old, "max_concurrency": 2}))
    assert [each.arrival_s for each in run.served] == pytest.approx([0.0, 0.0, 1.0, 1.5, 1.7])
    with pytest.raises(BenchError, match=r"c.json: start_times: missing; .*older versions save no arrivals"):
        read_log(write(tmp_path / "c.json", {**old, "request_rate": 3.0}))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ttfts": None}, r"ttfts: missing; run vllm bench serve with --save-result --save-detailed"),
        ({"itls": [[0.1]]}, r"itls: 1 entries, but ttfts has 5"),
        ({"itls": [0.1] * 5}, r"request 0: itls: expected a list, found 0.1"),
        ({"ttfts": [0.1, 0.0, "x", 0.3, 0.4]}, r"request 2: ttfts: expected a number, found 'x'"),
        ({"start_times": [1e9, None, None, 1e9, 1e9]}, r"request 2: start_times: missing"),
        ({"input_lens": [float("nan"), 1, 1, 1, 1]}, r"request 0: input_lens: expected a number, found nan"),
        ({"ttfts": [-0.1, 0, 0, 0, 0]}, r"request 0: ttfts: the first token comes 0.100 s before arrival"),
    ],
)
def test_mistakes_in_vllm_bench_are_named(changed: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=words):
        read_log(write(tmp_path / "bench.json", vllm_result(**changed)))


def aiperf_row(number: int, **changed: Any) -> dict[str, Any]:
    start = 1759813207532900363 + number * 10**9
    row: dict[str, Any] = {
        "metadata": {
            "session_num": number,
            "x_request_id": f"r{number}",
            "x_correlation_id": f"s{number}",
            "conversation_id": f"c{number % 2}",
            "turn_index": 0,
            "request_start_ns": start,
            "request_end_ns": start + 10**9,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": 550 + number, "unit": "tokens"},
            "time_to_first_token": {"value": 250.0, "unit": "ms"},
            "request_latency": {"value": 1000.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [5.0, 5.3], "unit": "ms"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
        },
        "error": None,
    }
    for name, value in changed.items():
        row = {**row, name: {**(row[name] or {}), **value}}
    return row


def test_aiperf_phases_failures_and_units(tmp_path: Path) -> None:
    rows = [
        aiperf_row(0, metadata={"benchmark_phase": "warmup"}),
        aiperf_row(1),
        aiperf_row(2, metrics={"request_latency": {"value": 1.5, "unit": "s"}}),
        aiperf_row(3, metadata={"was_cancelled": True}, error={"code": 499, "type": "RequestCancellationError"}),
        aiperf_row(4, metrics={"output_sequence_length": {"value": 0, "unit": "tokens"}}),
    ]
    run = only(write(tmp_path / "profile_export.jsonl", *rows))
    assert [each.arrival_s for each in run.served] == pytest.approx([1.0, 2.0])
    assert [each.finish_s for each in run.served] == pytest.approx([2.0, 3.5])
    assert run.unreported == {"warm-up": 1, "failed": 1, "without output": 1}
    assert [each.arrival_s for each in run.load] == pytest.approx([0.0, 4.0])
    assert [each.program_id for each in run.served] == [None, None]


def test_turns_of_an_aiperf_session_share_their_context(tmp_path: Path) -> None:
    rows = [aiperf_row(n, metadata={"x_correlation_id": "one", "turn_index": n // 2}) for n in (0, 2)]
    run = only(write(tmp_path / "profile_export.jsonl", *rows, aiperf_row(1)))
    assert [(each.program_id, each.gap_s) for each in run.served] == [
        ("one", pytest.approx(1.0)),
        (None, 0),
        ("one", 0),
    ]


def test_aiperf_without_streaming_is_named(tmp_path: Path) -> None:
    row = aiperf_row(0)
    del row["metrics"]["time_to_first_token"]
    with pytest.raises(BenchError, match=r"jsonl:2: time_to_first_token: missing; run aiperf profile with --streaming"):
        read_log(write(tmp_path / "profile_export.jsonl", aiperf_row(1), row))


def guidellm_requests(old: bool, status: str, count: int) -> list[dict[str, Any]]:
    found = []
    for n in range(count):
        start, end = 1700.0 + n, 1701.0 + n
        first = None if status == "errored" else 200.0
        row: dict[str, Any] = {"request_id": f"{n}", "prompt_tokens": 500, "output_tokens": 20 if first else None}
        row["time_to_first_token_ms"] = first
        row |= {"start_time": start, "end_time": end} if old else {"request_start_time": start, "request_end_time": end}
        if not old:
            row["info"] = {"status": status, "timings": {"request_start": start}, "conversation_id": f"c{n}"}
        found.append(row)
    return found


def guidellm_file(path: Path, old: bool, made: int = 4) -> Path:
    strategy = {"type_": "constant", "rate": 4.0}
    totals = {"successful": made, "incomplete": 2, "errored": 1, "total": made + 3}
    benchmark: dict[str, Any] = {
        "requests": {s: guidellm_requests(old, s, n) for s, n in (("successful", 4), ("incomplete", 2), ("errored", 1))}
    }
    if old:
        benchmark |= {"args": {"strategy": strategy}, "run_stats": {"requests_made": totals}}
        benchmark["worker"] = {"backend_model": "Qwen/Qwen3-14B"}
    else:
        benchmark |= {"config": {"strategy": strategy}, "metrics": {"request_totals": totals}}
    data = {"args": {"model": "Qwen/Qwen3-14B"}, "benchmarks": [benchmark, benchmark]}
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")
    return path


@pytest.mark.parametrize("old", [True, False])
def test_guidellm_of_several_benchmarks(old: bool, tmp_path: Path) -> None:
    found = read_log(guidellm_file(tmp_path / "benchmarks.json", old))
    assert [run.name for run in found] == ["benchmark 0 (constant, rate 4.0)", "benchmark 1 (constant, rate 4.0)"]
    for run in found:
        assert run.server.model == "Qwen/Qwen3-14B"
        assert lengths(run) == [(500, 20)] * 4
        assert run.unreported == {"cut off": 2, "failed": 1}
        assert [each.output_tokens for each in run.load] == [20, 20]


def test_guidellm_that_kept_a_sample_of_its_requests(tmp_path: Path) -> None:
    run, _ = read_log(guidellm_file(tmp_path / "benchmarks.json", False, made=5))
    assert run.unreported["not in the log"] == 1
    with pytest.raises(BenchError, match=r"benchmarks\[0\].requests.successful: 4 of 9 answered requests; .*sampling"):
        read_log(guidellm_file(tmp_path / "benchmarks.json", True, made=9))


def test_a_folder_holds_several_logs(tmp_path: Path) -> None:
    """Every log in it and in its folders; JSON of other kinds is left alone."""
    folder = tmp_path / "results"
    for rate in (2.0, 12.0):
        write(folder / f"qps{rate:g}.json", vllm_result(request_rate=rate))
        write(folder / f"qps{rate:g}.pytorch.json", {"metric": "Latency"})
    with gzip.open(folder / "z.json.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(vllm_result(request_rate=3.0)))
    write(folder / "aiperf" / "profile_export.jsonl", aiperf_row(0))
    write(folder / "aiperf" / "profile_export_aiperf.json", {"request_throughput": {"avg": 1.0}})
    write(folder / "aiperf" / "inputs.json", {"data": []})
    (folder / "notes.txt").write_text("no log", encoding="utf-8")
    assert [run.name for run in read_log(folder)] == [
        "aiperf",
        "qps12 (12 requests/s)",
        "qps2 (2 requests/s)",
        "z (3 requests/s)",
    ]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "logs" / name / "bench.json", vllm_result())
    assert [run.name for run in read_log(tmp_path / "logs")] == [
        "bench (4 requests/s), number 1",
        "bench (4 requests/s), number 2",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"x.json: is no known log: expected vllm bench serve"),
        ('{"a": 1}', r"x.json: is no known log"),
        ("[1, 2]", r"x.json: is no known log"),
        ('{"metadata": {}, "error": 1}\n\n{"b": ', r"x.json:3: not JSON: Expecting value"),
        ('{"metadata": {}, "error": 1}\n2', r"x.json:2: expected an object"),
        ("\ufeff" + '{"benchmarks": 3}', r"x.json: benchmarks: expected a list"),
        ('{"benchmarks": []}', r"x.json: is no known log"),
        ('{"metadata": {}, "error": {"code": 500}}', r"x.json: .*: no request that was answered"),
    ],
)
def test_files_that_are_no_logs(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=words):
        read_log(tmp_path / "x.json")


def test_a_folder_without_logs(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="holds no known log"):
        read_log(tmp_path)
    (tmp_path / "x.json.gz").write_bytes(b"no gzip")
    with pytest.raises(BenchError, match=r"x.json.gz: cannot read"):
        read_log(tmp_path)


def test_llmservingsim_names_options_of_its_server(tmp_path: Path) -> None:
    row = {"input_toks": 10, "output_toks": 2, "arrival_time": 5.0}
    row |= {"queued_ts": 1.0, "first_token_ts": 1.5, "last_token_ts": 2.0}
    failed = {**row, "first_token_ts": None, "last_token_ts": None}
    options = {"pipeline_parallel_size": 2, "kv_cache_dtype": "fp8", "enable_prefix_caching": False, "block_size": 32}
    meta = {"model": "Qwen/Qwen3-8B", "vllm_version": "0.23.0", "engine_kwargs": options}
    write(tmp_path / "meta.json", {**meta, "kv_cache": {"num_gpu_blocks": 2100}})
    run = only(write(tmp_path / "requests.jsonl", row, failed))
    facts = run.server
    assert (facts.pipeline_parallel, facts.kv_cache_dtype, facts.prefix_caching) == (2, "fp8", False)
    assert (facts.block_size, facts.kv_blocks) == (32, 2100)
    assert run.unreported == {"failed": 1}
