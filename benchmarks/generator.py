"""Measures how much load one process of the load generator makes, and how punctually, beside two other generators.

    python benchmarks/generator.py programs [--programs 2000] [--tokens 32] [--processes 1] [--token-times] [--runs 5]
    python benchmarks/generator.py requests [--guidellm PATH] [--aiperf PATH] [--runs 5]
    python benchmarks/generator.py json

The server is ``light_server.py``, in a process of its own on the last core. The generators may use every core.

``programs``: fixed concurrency. The synthetic programs have six turns: 2,000 tokens at first, 500 more in each turn.
Each answer is streamed in ``--tokens`` chunks, the first after 200 ms and the others 40 ms apart. Tools take 1 s on
average, exponentially distributed.
``requests``: single-turn chat requests with 128 prompt tokens and 16 output tokens, which all three tools can make. The
tools run in turn, several times. Requests/s: 64 requests at a time, answered at once; the server counts the requests
between its first and last tenth. Lateness: the tools send at a constant rate, and the server notes when each request
arrives. The lateness of a request is its distance from a grid of that rate, placed so that no request is early. PATH
is the executable of a tool, each in an environment of its own.
``json``: microseconds to read one streamed chunk and to write one long prompt, for each JSON library; orjson if it is
installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from continuum_bench.live.http import decode_chunk
from continuum_server.local_model import TINY, ensure_model
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_arrivals, read_json, read_turns
from continuum_traces.schema import Program, ToolCall, Turn

HERE = Path(__file__).parent
clock = time.perf_counter  # noqa: TID251
TURNS, TTFT_MS, TPOT_MS, TOOL_S = 6, 200, 40, 1.0
CONCURRENCY, CLOSED_REQUESTS, RATE, RATE_S = 64, 3000, 100, 20


@contextmanager
def light_server(ttft_ms: float, tpot_ms: float) -> Iterator[str]:
    """Start the server, and yield its URL without a path."""
    last_core = str(max(os.sched_getaffinity(0)))
    command = [sys.executable, HERE / "light_server.py", "--ttft-ms", ttft_ms, "--tpot-ms", tpot_ms, "--cpu", last_core]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def ask(url: str, method: str = "GET") -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(f"{url}/arrivals", method=method), timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def replay(trace: Path, url: str, out: Path, *more: object) -> None:
    words = ["replay", trace, "--base-url", f"{url}/v1", "--no-report", "--out", out, *more]
    run([sys.executable, "-m", "continuum_bench", *map(str, words)])


def run(command: Sequence[str], **environment: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def child_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------------------------------------ programs


def agent_programs(count: int, tokens: int) -> list[Program]:
    chance = random.Random(1)

    def turn(index: int) -> Turn:
        calls = (ToolCall("ls", chance.expovariate(1 / TOOL_S)),) if index < TURNS - 1 else ()
        return Turn(2000 if index == 0 else 500, tokens, tool_calls=calls)

    return [Program(f"p{i}", tuple(turn(n) for n in range(TURNS)), synthetic=True) for i in range(count)]


def most_at_once(folder: Path) -> int:
    """Return the largest number of programs that ran at the same time, from the records."""
    starts = [(arrival.due_s, 1) for arrival in read_arrivals(folder)]
    ends = [(record.finish_s or 0.0, -1) for record in read_turns(folder) if record.is_last]
    steps = sorted([*starts, *ends], key=lambda step: (step[0], step[1]))
    return int(np.cumsum([step for _, step in steps]).max())


def measure_programs(options: argparse.Namespace, trace: Path, out: Path) -> dict[str, float]:
    with light_server(TTFT_MS, TPOT_MS) as url:
        load, cpu_s = os.getloadavg()[0], child_cpu_s()
        spec = f"concurrency:{options.programs}:{options.ramp_s:g}"
        replay(trace, url, out, "--arrivals", spec, "--processes", options.processes, *options.token_times)
        cpu_s, server_cpu_s = child_cpu_s() - cpu_s, ask(url)["cpu_s"]
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    facts, turns = read_json(folder / "engine.json"), list(read_turns(folder))
    finishes = np.array(sorted(turn.finish_s or 0.0 for turn in turns))
    low, high = np.percentile(finishes, [20, 80])
    rate = float(((finishes >= low) & (finishes <= high)).sum() / (high - low))
    return {
        "at once": most_at_once(folder),
        "turns/s": rate,
        "chunks/s": rate * options.tokens,
        "late P50, ms": facts["send_lateness_p50_s"] * 1e3,
        "late P99, ms": facts["send_lateness_p99_s"] * 1e3,
        "late max, ms": facts["send_lateness_max_s"] * 1e3,
        "loop lag P99, ms": facts["loop_lag_p99_s"] * 1e3,
        "CPU of generator": cpu_s / facts["wall_s"],
        "CPU of server": server_cpu_s / facts["wall_s"],
        "load before": load,
        "failed": facts["programs_failed"],
    }


def programs(options: argparse.Namespace) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "agents.jsonl.gz"
        write_programs(trace, agent_programs(round(options.programs * options.rounds), options.tokens))
        for number in range(options.runs):
            rows.append(measure_programs(options, trace, Path(name) / str(number)))
            show(f"run {number + 1}", rows[-1])
    print(f"| median (least to most) of {len(rows)} | " + " | ".join(spread(rows, key) for key in rows[0]) + " |")  # noqa: T201


def show(label: str, row: dict[str, float]) -> None:
    print(f"{label}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)  # noqa: T201


def spread(rows: Sequence[dict[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
    return f"{key} {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


# ------------------------------------------------------------------------------------------------ requests

Tool = Callable[[str, Path, bool], None]
"""Runs a load generator to its end. Arguments: URL, empty folder, constant rate (False: fixed concurrency)."""


def ours(url: str, out: Path, constant: bool) -> None:
    count = RATE * RATE_S if constant else CLOSED_REQUESTS
    trace = out.with_suffix(".jsonl.gz")
    write_programs(trace, [Program(f"p{i}", (Turn(128, 16),), synthetic=True) for i in range(count)])
    arrivals = ["--arrivals", "constant", "--jps", RATE] if constant else ["--arrivals", f"concurrency:{CONCURRENCY}"]
    replay(trace, url, out, "--prompts", "text", "--dialect", "headers", *arrivals)


def guidellm(command: str, tokenizer: str) -> Tool:
    def tool(url: str, out: Path, constant: bool) -> None:
        profile = f"kind=constant,rate={RATE}" if constant else f"kind=concurrent,streams={CONCURRENCY}"
        count = RATE * RATE_S if constant else CLOSED_REQUESTS
        words = ["run", "--backend", f"kind=openai_http,target={url},model=light", "--profile", profile]
        words += ["--constraint", f"kind=max_requests,count={count}", "--tokenizer", f"kind=hf_auto,model={tokenizer}"]
        words += ["--data", "kind=synthetic_text,prompt_tokens=128,output_tokens=16", "--disable-console"]
        run([command, *words, "--output", f"kind=json,path={out}.json"], HF_HUB_OFFLINE="1")

    return tool


def aiperf(command: str, tokenizer: str) -> Tool:
    def tool(url: str, out: Path, constant: bool) -> None:
        load = ["--request-rate", RATE, "--arrival-pattern", "constant"] if constant else ["--concurrency", CONCURRENCY]
        count = RATE * RATE_S if constant else CLOSED_REQUESTS
        words = ["profile", "-m", "light", "--url", url, "--endpoint-type", "chat", "--streaming", *load]
        words += ["--request-count", count, "--isl", 128, "--osl", 16, "--tokenizer", tokenizer, "--ui", "none"]
        run([command, *map(str, words), "--use-server-token-count", "--artifact-dir", str(out)])

    return tool


def measure_requests(tool: Tool, folder: Path) -> dict[str, float]:
    row = {"load before": os.getloadavg()[0]}
    with light_server(0, 0) as url:
        cpu_s = child_cpu_s()
        tool(url, folder / "closed", False)
        row["CPU s, whole command"] = child_cpu_s() - cpu_s
        times_s = np.array(ask(url)["arrivals_s"])
        middle = times_s[len(times_s) // 10 : -len(times_s) // 10]
        row["requests/s"] = (len(middle) - 1) / float(middle[-1] - middle[0])
    with light_server(20, 5) as url:
        tool(url, folder / "constant", True)
        times_s = np.array(ask(url)["arrivals_s"])[RATE:]  # without its first second
    off_grid = times_s - np.arange(len(times_s)) / RATE
    late_ms = (off_grid - off_grid.min()) * 1e3
    row["requests at the rate"] = len(times_s) + RATE
    for name, percentile in (("P50", 50), ("P99", 99), ("max", 100)):
        row[f"late {name}, ms"] = float(np.percentile(late_ms, percentile))
    return row


def requests(options: argparse.Namespace) -> None:
    tokenizer = str(ensure_model(TINY))
    tools: dict[str, Tool] = {"continuum-bench": ours}
    if options.guidellm:
        tools["guidellm"] = guidellm(options.guidellm, tokenizer)
    if options.aiperf:
        tools["aiperf"] = aiperf(options.aiperf, tokenizer)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
    for number in range(options.runs):
        for name, tool in tools.items():
            with tempfile.TemporaryDirectory() as folder:
                rows[name].append(measure_requests(tool, Path(folder)))
            show(f"run {number + 1}, {name}", rows[name][-1])
    for name, found in rows.items():
        print(f"| {name} | " + " | ".join(spread(found, key) for key in found[0]) + " |")  # noqa: T201


# ---------------------------------------------------------------------------------------------------- json

CHUNK = {
    **{"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1780000000, "model": "llama-3.1-8b"},
    "choices": [{"index": 0, "text": " fine", "logprobs": None, "finish_reason": None, "token_ids": [1234]}],
    "usage": None,
}


def micros(work: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(work, number=number, repeat=7)) / number * 1e6


def json_libraries(options: argparse.Namespace) -> None:
    chunk, ids = json.dumps(CHUNK).encode(), [1000 + n % 7000 for n in range(35_000)]
    kept = {"prompt": msgspec.Raw(b"[" + b",".join(b"%d" % token for token in ids) + b"]")}
    reads: dict[str, Callable[[], object]] = {"msgspec, typed": lambda: decode_chunk(chunk)}
    writes: dict[str, Callable[[], object]] = {
        "kept as text": lambda: msgspec.json.encode(kept),
        "msgspec": lambda: msgspec.json.encode({"prompt": ids}),
    }
    with suppress(ImportError):
        orjson = import_module("orjson")
        reads["orjson"], writes["orjson"] = lambda: orjson.loads(chunk), lambda: orjson.dumps({"prompt": ids})
    reads["json"], writes["json"] = lambda: json.loads(chunk), lambda: json.dumps({"prompt": ids})
    show("read a chunk, us", {name: micros(work, 10_000) for name, work in reads.items()})
    show("write a prompt of 35,000 tokens, us", {name: micros(work, 20) for name, work in writes.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("programs")
    one.set_defaults(work=programs)
    one.add_argument("--programs", type=int, default=2000)
    one.add_argument("--rounds", type=float, default=1.5, help="number of programs, as a multiple of the concurrency")
    one.add_argument("--tokens", type=int, default=32)
    one.add_argument("--ramp-s", type=float, default=10.0)
    one.add_argument("--processes", type=int, default=1)
    one.add_argument("--token-times", action="store_const", const=["--token-times"], default=[])
    two = commands.add_parser("requests")
    two.set_defaults(work=requests)
    two.add_argument("--guidellm")
    two.add_argument("--aiperf")
    commands.add_parser("json").set_defaults(work=json_libraries)
    for command in (one, two):
        command.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
