"""Measures what ``continuum-proxy`` adds to a call, in microseconds.

    python benchmarks/proxy_overhead.py [--pairs 1000]

One HTTP client calls a local server with canned answers (``client_overhead.py``) alternately directly and through the
proxy, call by call in one run. Client, proxy and server are processes of their own. A stream is timed to its last byte.
The added time is the median over pairs of (through the proxy - directly), with the quartiles of the pairs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
from client_overhead import LARGE, SMALL, pairs_sync, quantile, serve

PATH = "/v1/chat/completions"
INSIDE = "--inside"


def caller(url: str, body: bytes) -> Callable[[], None]:
    """Return a function that sends one request over a connection that stays open."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def call() -> None:
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200

    return call


def inside(direct: str, arm: str, pairs: int) -> None:
    """Measure, and print a row for each kind of call. This runs as the program behind the proxy."""
    proxied = os.environ["OPENAI_BASE_URL"]
    for kind, messages, stream in (("whole", SMALL, False), ("stream", SMALL, True), ("whole, 200 KB", LARGE, False)):
        request = {"model": "m", "messages": messages, **({"stream": True} if stream else {})}
        body = json.dumps(request, separators=(",", ":")).encode()
        plain, ours = caller(direct, body), caller(proxied, body)
        pairs_sync(plain, ours, 50)
        pairs_s = pairs_sync(plain, ours, pairs)
        added = [(through - alone) * 1e6 for alone, through in pairs_s]
        low, middle, high = (quantile(added, share) for share in (0.25, 0.5, 0.75))
        alone = quantile([alone * 1e6 for alone, _ in pairs_s], 0.5)
        sys.stdout.write(f"| {kind} | {arm} | {alone:.0f} | {middle:.0f} ({low:.0f} to {high:.0f}) |\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument(INSIDE, nargs=2, metavar=("URL", "ARM"))
    arguments = parser.parse_args()
    if arguments.inside:
        inside(*arguments.inside, arguments.pairs)
        return
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    versions = f"aiohttp {aiohttp.__version__}, Python {platform.python_version()}"
    sys.stdout.write(f"{versions}, {arguments.pairs} pairs a row, load {os.getloadavg()[0]:.1f}\n\n")
    sys.stdout.write("| call | arm | direct P50, us | added P50, us (quartiles) |\n|---|---|---|---|\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        for arm, options in (("tags", []), ("tags, recorded", ["--record", folder])):
            ours = [sys.executable, "-m", "continuum_client.proxy_command", "--upstream", url, "--dialect", "vllm"]
            measured = [sys.executable, __file__, INSIDE, url, arm, "--pairs", str(arguments.pairs)]
            subprocess.run([*ours, *options, "--", *measured], check=True)
    server.terminate()


if __name__ == "__main__":
    main()
