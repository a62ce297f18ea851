"""Measures what the client SDK adds to a call, in microseconds, and to an import, in milliseconds.

    python benchmarks/client_overhead.py [--pairs 3000]

Plain openai and our client call one local server alternately, call by call in one run. The server is a process of its
own and sends canned answers. The added time is the median over pairs of (ours - plain), with a 95% interval from
resampling; the added P99 is the difference of the two 99th percentiles. A stream is timed to its last chunk. The import
time is the median over new processes, alternately. The client asks for the token counts of a recorded stream, which is
one more chunk to read; in the arm "vllm, recorded, both ask" the plain client asks for them too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from continuum_client import AsyncOpenAI, OpenAI, instrument, uninstrument

clock = time.perf_counter  # noqa: TID251
CHUNKS = 16


class Plain(openai.OpenAI):
    """openai's client, also while openai is instrumented."""

    request = openai._base_client.SyncAPIClient.request


class AsyncPlain(openai.AsyncOpenAI):
    request = openai._base_client.AsyncAPIClient.request


def answer() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "fine " * 20}, "finish_reason": "stop"}
    usage = {
        "prompt_tokens": 900,
        "completion_tokens": 20,
        "total_tokens": 920,
        "prompt_tokens_details": {"cached_tokens": 800},
    }
    data = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    body = json.dumps(data).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def stream(with_usage: bool) -> bytes:
    base: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = [{**base, "choices": [{"index": 0, "delta": {"content": "fine "}, "finish_reason": None}]}] * CHUNKS
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if with_usage:
        usage = {"prompt_tokens": 900, "completion_tokens": CHUNKS, "total_tokens": 900 + CHUNKS}
        events.append({**base, "choices": [], "usage": usage})
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


def serve(port: Any) -> None:
    """The server's process."""
    whole, plain, counted = answer(), stream(False), stream(True)

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lower = head.lower()
                start = lower.index(b"content-length:") + 15
                body = await reader.readexactly(int(lower[start : lower.index(b"\r", start)]))
                if b'"stream":true' not in body:
                    writer.write(whole)
                else:
                    writer.write(counted if b"include_usage" in body else plain)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(one, "127.0.0.1", 0, limit=2**22)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


SMALL = [{"role": "user", "content": "hi"}]
LARGE = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 650} for n in range(60)]


def pairs_sync(plain: Callable[[], Any], ours: Callable[[], Any], count: int) -> list[tuple[float, float]]:
    """Time both calls ``count`` times, and return the seconds in pairs. The call that goes first alternates."""
    result = []
    for number in range(count):
        times = {}
        for call in (plain, ours) if number % 2 else (ours, plain):
            start = clock()
            call()
            times[call] = clock() - start
        result.append((times[plain], times[ours]))
    return result


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Summarise pairs of seconds (plain, ours), in microseconds."""
    added = [(ours - plain) * 1e6 for plain, ours in pairs]
    chance = random.Random(1)
    medians = [quantile(chance.choices(added, k=len(added)), 0.5) for _ in range(400)]
    p99 = [quantile([pair[side] * 1e6 for pair in pairs], 0.99) for side in (0, 1)]
    return {
        "plain_p50_us": quantile([plain * 1e6 for plain, _ in pairs], 0.5),
        "added_p50_us": quantile(added, 0.5),
        "added_p50_low_us": quantile(medians, 0.025),
        "added_p50_high_us": quantile(medians, 0.975),
        "plain_p99_us": p99[0],
        "added_p99_us": p99[1] - p99[0],
    }


def sender(client: Any, request: dict[str, Any], kind: str, loop: asyncio.AbstractEventLoop) -> Callable[[], Any]:
    """Return the function that makes one call and reads all of its answer."""
    is_stream = "stream" in kind

    def sync() -> None:
        answer = client.chat.completions.create(**request, stream=is_stream)
        for _ in answer if is_stream else ():
            pass

    async def one() -> None:
        answer = await client.chat.completions.create(**request, stream=is_stream)
        if is_stream:
            async for _ in answer:
                pass

    return (lambda: loop.run_until_complete(one())) if kind.startswith("async") else sync


def measure(
    url: str, options: dict[str, Any], kind: str, body: dict[str, Any], count: int, program: bool
) -> dict[str, float]:
    theirs, plainly, our = CLIENTS[kind.startswith("async")]
    if kind == "in process":
        options = {**options, "http_client": in_process()}
    loop, request = asyncio.new_event_loop(), {"model": "m", **body}
    plain = plainly(base_url=url, api_key="k", http_client=options.get("http_client"))
    with client_to_measure(theirs, our, url, options, program) as ours:
        calls = [sender(client, request, kind, loop) for client in (plain, ours)]
        pairs_sync(*calls, 100)
        gc.collect()
        measured = summary(pairs_sync(*calls, count))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    return measured


CLIENTS: dict[bool, tuple[Any, Any, Any]] = {
    False: (openai.OpenAI, Plain, OpenAI),
    True: (openai.AsyncOpenAI, AsyncPlain, AsyncOpenAI),
}


def in_process() -> httpx.Client:
    """Return an HTTP client that answers each call in this process, without a network."""
    body = answer().split(b"\r\n\r\n", 1)[1]
    reply = {"content": body, "headers": {"content-type": "application/json"}}
    return httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, **reply)))


@contextmanager
def client_to_measure(theirs: Any, ours: Any, url: str, options: dict[str, Any], program: bool) -> Iterator[Any]:
    """Make the client of an arm, and enter a program if the arm has one."""
    if options.get("instrument"):
        opens = instrument(dialect=options["dialect"], record=options.get("record")).program
        client = theirs(base_url=url, api_key="k", http_client=options.get("http_client"))
    else:
        client = ours(base_url=url, api_key="k", **options)
        opens = client.program
    p = opens("benchmark") if program else None
    if p is not None:
        p.__enter__()
    yield client
    if p is not None:
        p._leave()
    uninstrument()


def import_ms(repeats: int) -> dict[str, float]:
    """Return the milliseconds of the imports, each in fresh processes that alternate."""
    timed = "import time; s = time.perf_counter(); {}; print((time.perf_counter() - s) * 1e3)"
    code = {
        "openai": timed.format("from openai import OpenAI"),
        "ours": timed.format("from continuum_client import OpenAI"),
    }
    times: dict[str, list[float]] = {name: [] for name in code}
    for _ in range(repeats + 1):
        for name, script in code.items():
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
            times[name].append(float(done.stdout))
    medians = {name: quantile(values[1:], 0.5) for name, values in times.items()}
    return {**medians, "added": medians["ours"] - medians["openai"]}


ARMS: dict[str, dict[str, Any]] = {
    "headers, in a program": {},
    "vllm, in a program": {"dialect": "vllm"},
    "vllm, recorded": {"dialect": "vllm", "record": True},
    "vllm, recorded, both ask": {"dialect": "vllm", "record": True},
    "outside a program": {},
    "instrument(), in a program": {"instrument": True, "dialect": "vllm"},
    "instrument(), recorded": {"instrument": True, "dialect": "vllm", "record": True},
    "instrument(), outside a program": {"instrument": True, "dialect": "vllm"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3000)
    arguments = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    say = sys.stdout.write
    say(f"openai {openai.__version__}, Python {platform.python_version()}, {arguments.pairs} pairs a row\n\n")
    say(f"| call | arm | plain P50, us | added P50, us (95%) | plain P99, us | added P99, us |\n{'|---' * 6}|\n")
    for kind, messages in (
        ("in process", SMALL),
        ("sync", SMALL),
        ("sync stream", SMALL),
        ("async", SMALL),
        ("async stream", SMALL),
        ("sync, 200 KB", LARGE),
    ):
        for arm, options in ARMS.items():
            both = arm.endswith("both ask")
            if both and "stream" not in kind:
                continue
            more = {"stream_options": {"include_usage": True}} if both else {}
            with tempfile.TemporaryDirectory() as folder:
                chosen = {**options, "record": folder} if options.get("record") else options
                count = arguments.pairs // (5 if messages is LARGE else 1)
                row = measure(url, chosen, kind, {"messages": messages, **more}, count, "outside" not in arm)
            say(
                f"| {kind} | {arm} | {row['plain_p50_us']:.0f} | {row['added_p50_us']:.1f}"
                f" ({row['added_p50_low_us']:.1f} to {row['added_p50_high_us']:.1f}) |"
                f" {row['plain_p99_us']:.0f} | {row['added_p99_us']:.0f} |\n"
            )
            sys.stdout.flush()
    imports = import_ms(15)
    say(
        f"\nimport: openai {imports['openai']:.0f} ms, ours {imports['ours']:.0f} ms, added {imports['added']:.1f} ms\n"
    )
    server.terminate()


if __name__ == "__main__":
    main()
