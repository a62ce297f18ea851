"""Measures what each way to several engines costs: requests per second, and latency beside one engine without a router.

    PYTHONPATH=tests python benchmarks/ways.py [--ways engine,stock,ranks,vllm-router,ray,dynamo]
        [--streams 1,100,1000] [--repeats 3]

Each way has two emulated vLLM servers with the plugin; the first two have one. The modelled GPU is 50 times as fast as
an H100, so the processors of this machine are the limit, which servers, routers and the load generator share. Each
stream sends turns of 50 new prompt tokens and 16 output tokens, one after another, as text and with the headers of our
client. An engine runs at most 512 requests at a time; others wait. Latency is the median time from sending a request to
the end of its answer; what is added is the difference to one engine at as many streams. Every repeat plays all ways;
the table has medians, and the range of requests per second. `make endpoints` installs the routers. Everything runs in a
network of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from commands import bench, show
from continuum_analysis.compare.words import markdown
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.server_command import command_of
from continuum_server.server_config import STOCK, ServerConfig
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_turns
from continuum_traces.schema import Program, Turn
from endpoints import ALONE, DYNAMO_WORKER, SANDBOX, dynamo, environment, gateway, ray_serve

TURNS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 50, 16
SERVER = ServerConfig(port=0, max_num_seqs=512, emulated=EmulatedSettings(time_scale=50.0))
SERVERS = 2


@contextmanager
def servers(folder: Path, count: int, config: ServerConfig = SERVER) -> Iterator[list[str]]:
    with ExitStack() as stack:
        started = [stack.enter_context(Server(config, folder / f"server{number}.log")) for number in range(count)]
        yield [server.url for server in started]


@contextmanager
def one_engine(folder: Path) -> Iterator[str]:
    with servers(folder, 1) as (url,):
        yield url


@contextmanager
def stock(folder: Path) -> Iterator[str]:
    with servers(folder, 1, replace(SERVER, policy=STOCK)) as (url,):
        yield url


@contextmanager
def ranks(folder: Path) -> Iterator[str]:
    with servers(folder, 1, replace(SERVER, data_parallel_size=SERVERS)) as (url,):
        yield url


@contextmanager
def vllm_router(folder: Path) -> Iterator[str]:
    with servers(folder, SERVERS) as urls, gateway("vllm-router", urls, folder) as gate:
        yield gate.url


@contextmanager
def ray(folder: Path) -> Iterator[str]:
    command, variables = command_of(SERVER, 0)
    command[command.index("--port") + 1] = "PORT"
    words = ["ray_serve:app", f"replicas={SERVERS}", "gpus=0", f"command={shlex.join(command)}"]
    with ray_serve(folder, words, **variables) as gate:
        yield gate.url


@contextmanager
def of_dynamo(folder: Path) -> Iterator[str]:
    """Its workers have a vLLM of their own environment."""
    command, variables = command_of(SERVER, 0)
    kept = {"--model", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--block-size"}
    kept |= {"--load-format", "--distributed-executor-backend", "--scheduler-cls", "--additional-config"}
    words = [word for name, value in pairwise(command) if name in kept for word in (name, value)]
    python = environment("dynamo-vllm") / "python"
    (folder / "worker.py").write_text(DYNAMO_WORKER)
    paths = ":".join(str(Path(__file__).parents[1] / name) for name in ("server_patch", "traces"))
    settings = {**variables, "PYTHONPATH": paths, "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    before = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    worker = [str(python), str(folder / "worker.py"), "--served-model-name", "m", "--enforce-eager", *words]
    with dynamo(folder, SERVERS, worker=f"{before} {shlex.join(worker)}") as gate:
        yield gate.url


WAYS: dict[str, tuple[str, Callable[[Path], AbstractContextManager[str]]]] = {
    "engine": ("one engine", one_engine),
    "stock": ("one engine without the plugin", stock),
    "ranks": ("`--data-parallel-size 2`", ranks),
    "vllm-router": ("vllm-router", vllm_router),
    "ray": ("Ray Serve", ray),
    "dynamo": ("Dynamo", of_dynamo),
}


def measure(url: str, streams: int, folder: Path) -> tuple[float, float]:
    """Return requests per second, from the time in which the middle 60% ended, and the median latency in ms."""
    turns = (Turn(PROMPT_TOKENS, OUTPUT_TOKENS),) * TURNS
    count = max(40, 2 * streams)
    write_programs(trace := folder / f"{streams}.jsonl.gz", [Program(f"{streams}-{n}", turns) for n in range(count)])
    out = folder / f"out{streams}"
    load = ["--arrivals", f"concurrency:{streams}", "--prompts", "text", "--dialect", "headers"]
    bench("replay", trace, "--base-url", f"{url}/v1", "--no-report", "--out", out, *load)
    (run,) = [path for path in out.iterdir() if path.is_dir()]
    done = [turn for turn in read_turns(run) if turn.finish_s is not None and turn.error is None]
    if len(done) < count * TURNS:
        sys.exit(f"{count * TURNS - len(done)} of {count * TURNS} requests failed; see {run}")
    ends = np.array([turn.finish_s for turn in done], dtype=float)
    low, high = np.percentile(ends, [20, 80])
    rate = float(((ends >= low) & (ends <= high)).sum() / (high - low))
    return rate, 1e3 * statistics.median(float(turn.finish_s or 0.0) - turn.sent_s for turn in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--streams", default="1,100,1000")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if ALONE not in os.environ:
        os.execvpe(SANDBOX[0], [*SANDBOX, sys.executable, *sys.argv], {**os.environ, ALONE: "1"})
    ways, numbers = options.ways.split(","), [int(word) for word in options.streams.split(",")]
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {(way, n): [] for way in ways for n in numbers}
    for _ in range(options.repeats):
        for name in ways:
            with tempfile.TemporaryDirectory() as folder, WAYS[name][1](Path(folder)) as url:
                for streams in numbers:
                    rate, latency_ms = measure(url, streams, Path(folder))
                    measured[name, streams].append((rate, latency_ms))
                    print(json.dumps({"way": name, "streams": streams, "rate": rate, "ms": latency_ms}), flush=True)  # noqa: T201
    headings = ["", *(f"{word}, {n} streams" for n in numbers for word in ("requests/s", "latency, ms", "added, ms"))]
    rows = [[WAYS[way][0], *(cell for n in numbers for cell in cells(measured, way, ways[0], n))] for way in ways]
    show(markdown(headings, rows))


def cells(
    measured: Mapping[tuple[str, int], Sequence[tuple[float, float]]], way: str, direct: str, n: int
) -> list[str]:
    """Requests per second with their range, the latency, and how much longer it is than the ``direct`` way's, in ms."""
    rates, latencies = zip(*measured[way, n], strict=True)
    latency, without = statistics.median(latencies), statistics.median(ms for _, ms in measured[direct, n])
    rate = f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"
    return [rate, f"{latency:,.0f}", f"{latency - without:+,.0f}"]


if __name__ == "__main__":
    main()
