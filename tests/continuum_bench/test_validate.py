"""``validate``: formats of request logs, bad logs, and a replay that must agree with itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from continuum_bench.cli import app
from continuum_bench.errors import BenchError
from continuum_bench.validate.logs import read_log
from typer.testing import CliRunner

ROWS = [(0.0, 0.2, 1.2, 100, 11), (0.5, 0.9, 2.0, 200, 21), (0.7, 1.0, 1.0, 30, 1)]
"""Arrival, first token, end; prompt and output tokens."""
MEASURED_RUN = Path(__file__).parents[3] / "shared" / "validation" / "llmservingsim" / "RTXPRO6000_Llama-3.1-8B"
OPTIONS = ["--gpu", "h100", "--model", "llama-3.1-8b"]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def simulator_rows() -> list[dict[str, Any]]:
    return [
        {
            "input_toks": prompt,
            "output_toks": output,
            "arrival_time": 1e9 + arrival,
            "queued_ts": 50.0 + arrival + 0.01 * number,
            "first_token_ts": 50.0 + first,
            "last_token_ts": 50.0 + end,
        }
        for number, (arrival, first, end, prompt, output) in enumerate(ROWS)
    ]


def llmservingsim(folder: Path) -> Path:
    meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs": {"max_num_seqs": 64}}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return lines(folder / "requests.jsonl", simulator_rows())


def aiperf(folder: Path) -> Path:
    rows: list[dict[str, Any]] = [
        {
            "metadata": {"request_start_ns": int((1e9 + arrival) * 1e9)},
            "metrics": {
                "time_to_first_token": {"value": (first - arrival) * 1e3, "unit": "ms"},
                "request_latency": {"value": (end - arrival) * 1e3, "unit": "ms"},
                "input_sequence_length": {"value": prompt, "unit": "tokens"},
                "output_sequence_length": {"value": output, "unit": "tokens"},
            },
            "error": None,
        }
        for arrival, first, end, prompt, output in ROWS
    ]
    failed = {"metadata": {"request_start_ns": 0}, "metrics": {}, "error": {"code": 499}}
    return lines(folder / "profile_export.jsonl", [*rows, failed])


def guidellm(folder: Path) -> Path:
    rows = [
        {
            "request_start_time": 1e9 + arrival,
            "request_end_time": 1e9 + end,
            "time_to_first_token_ms": (first - arrival) * 1e3,
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for arrival, first, end, prompt, output in ROWS
    ]
    path = folder / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": [{"requests": {"successful": rows}}]}), encoding="utf-8")
    return path


def vllm_bench(folder: Path) -> Path:
    data = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "start_times": [70.0 + row[0] for row in ROWS],
        "ttfts": [first - arrival for arrival, first, *_ in ROWS],
        "itls": [[(end - first) / 2] * 2 for _, first, end, *_ in ROWS],
        "input_lens": [row[3] for row in ROWS],
        "output_lens": [row[4] for row in ROWS],
        "errors": ["", "", ""],
    }
    path = folder / "bench.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def own_run(folder: Path) -> Path:
    rows = [
        {
            "program_id": f"p{number}",
            "turn": 0,
            "due_s": 3.0 + arrival,
            "sent_s": 3.0 + arrival,
            "first_token_s": 3.0 + first,
            "finish_s": 3.0 + end,
            "prompt_tokens": prompt,
            "output_tokens": output,
        }
        for number, (arrival, first, end, prompt, output) in enumerate(ROWS)
    ]
    lines(folder / "turns.jsonl", rows)
    (folder / "manifest.json").write_text(json.dumps({"versions": {"vllm": "0.26.0"}}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("write", [llmservingsim, aiperf, guidellm, vllm_bench, own_run])
def test_every_format_says_the_same(write: Any, tmp_path: Path) -> None:
    (run,) = read_log(write(tmp_path))
    found = [(r.arrival_s, r.first_token_s, r.finish_s, r.prompt_tokens, r.output_tokens) for r in run.served]
    assert found == [pytest.approx(row, abs=1e-5) for row in ROWS]


def test_facts_of_the_server_are_read_beside_the_log(tmp_path: Path) -> None:
    (run,) = read_log(llmservingsim(tmp_path))
    assert (run.server.vllm, run.server.max_num_seqs, run.server.model) == ("0.19.0", 64, "meta-llama/Llama-3.1-8B")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("input_toks", None, r"requests.jsonl:2: input_toks: missing"),
        ("output_toks", 0, r"requests.jsonl:2: output tokens: 0; expected a whole number"),
        ("first_token_ts", 50.3, r"requests.jsonl:2: first_token_ts: the first token comes 0.200 s before arrival"),
        ("last_token_ts", 50.8, r"requests.jsonl:2: last_token_ts: the end comes 0.100 s before the first token"),
        ("queued_ts", "late", r"requests.jsonl:2: queued_ts: expected a number, found 'late'"),
    ],
)
def test_a_bad_line_is_named_with_its_field(field: str, value: Any, words: str, tmp_path: Path) -> None:
    rows = simulator_rows()
    rows[1][field] = value
    with pytest.raises(BenchError, match=words):
        read_log(lines(tmp_path / "requests.jsonl", rows))


def run_command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["validate", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--gpu", "tpu"], "unknown GPU 'tpu'"),
        (["--model", "gpt-2"], "unknown model 'gpt-2'"),
        (["--kv-blocks", "10"], "request 1 (by arrival): 221 tokens do not fit the model's context and 10 KV blocks"),
        (["--chunk", "32"], "chunk_tokens = 32 is below max_num_seqs = 64"),
        (["--fit"], "--fit needs at least 4 requests; there are 3"),
    ],
)
def test_mistakes_are_one_sentence(more: list[str], words: str, tmp_path: Path) -> None:
    code, _, stderr = run_command(str(llmservingsim(tmp_path)), *OPTIONS, *more)
    assert (code, stderr.count("\n")) == (2, 1)
    assert words in stderr


def test_answers_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        columns = {"start_times": [0.0] * 4, "ttfts": [0.2] * 4, "itls": [[]] * 4, "input_lens": [90] * 4}
        (tmp_path / name).write_text(json.dumps({**columns, "output_lens": [1] * 4}), encoding="utf-8")
    code, stdout, stderr = run_command(str(tmp_path), *OPTIONS, "--fit", "--report", str(tmp_path / "page.html"))
    assert code == 0, stderr
    last = next(line for line in reversed(stdout.splitlines()) if "b" in line)
    assert [cell.strip() for cell in last.split("│")[1:-1]][3] == "-"
    assert "tpot_p50" not in stdout


def test_a_log_without_lengths_and_a_file_of_another_kind(tmp_path: Path) -> None:
    path = vllm_bench(tmp_path)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "input_lens": None}), encoding="utf-8")
    with pytest.raises(BenchError, match="input_lens: missing; run vllm bench serve"):
        read_log(path)
    del data["start_times"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BenchError, match=r"start_times: missing; .*older versions save no arrivals"):
        read_log(path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BenchError, match="no known log"):
        read_log(path)
    assert run_command(str(tmp_path / "no.jsonl"), *OPTIONS)[0] == 2


def test_a_replay_of_a_modelled_run_has_no_error(tmp_path: Path) -> None:
    """What the model says of a log is written as a log; validated again it is exact. --fit finds nothing to mend."""
    log, page = tmp_path / "bench.json", tmp_path / "page.html"
    size = 24
    lengths = {"input_lens": [900 + 30 * n for n in range(size)], "output_lens": [20 + n for n in range(size)]}
    starts = [0.05 * n for n in range(size)]

    def write(ttfts: list[float], ends: list[float]) -> None:
        itls = [[end - ttft] for ttft, end in zip(ttfts, ends, strict=True)]
        log.write_text(json.dumps({"start_times": starts, "ttfts": ttfts, "itls": itls, **lengths}), encoding="utf-8")

    write([0.1] * size, [0.5] * size)
    from continuum_bench.options.validate import ValidateOptions  # noqa: PLC0415
    from continuum_bench.validate.command import engine_of  # noqa: PLC0415
    from continuum_bench.validate.replay import play  # noqa: PLC0415
    from continuum_server.virtual.config import times_of  # noqa: PLC0415

    (run,) = read_log(log)
    config = engine_of(run, ValidateOptions(log=log, gpu="h100", model="llama-3.1-8b"))
    modelled = play(run, config, times_of(config), asynchronous=True)
    write([r.first_token_s - r.arrival_s for r in modelled], [r.finish_s - r.arrival_s for r in modelled])
    code, stdout, _ = run_command(str(log), *OPTIONS, "--json", "--report", str(page))
    (found,) = json.loads(stdout)["runs"]
    assert code == 0
    for name in ("e2e_mean_error", "ttft_mean_error", "tpot_mean_error", "e2e_p99_error"):
        assert found[name] == pytest.approx(0.0, abs=1e-6)
    assert found["timeline"]["measured"] == found["timeline"]["modelled"]
    drawn = page.read_text(encoding="utf-8")
    assert drawn.count("<svg class='plot'") == 4  # of three times, and of the requests over time
    assert "prefers-color-scheme: dark" in drawn
    assert "End-to-end time, s" in drawn  # axes have titles
    sooner = play(run, config, times_of(config), asynchronous=False)
    assert sum(r.first_token_s for r in sooner) < sum(r.first_token_s for r in modelled)
    code, stdout, _ = run_command(str(log), *OPTIONS, "--json", "--step-overhead-ms", "1", "--fit")
    (fitted,) = json.loads(stdout)["runs"]
    assert fitted["requests"] == size // 2
    assert abs(fitted["e2e_mean_error"]) < 0.02


@pytest.mark.slow
def test_a_real_server_is_within_the_claim() -> None:
    if not MEASURED_RUN.exists():
        pytest.skip("the log is not in the repository")
    code, stdout, _ = run_command(str(MEASURED_RUN), "--gpu", "rtx-pro-6000", "--json")
    (found,) = json.loads(stdout)["runs"]
    assert code == 0
    assert all(abs(found[f"{name}_mean_error"]) < 0.05 for name in ("e2e", "ttft", "tpot"))
    assert abs(found["e2e_p99_error"]) < 0.1
