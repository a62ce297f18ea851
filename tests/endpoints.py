"""Real routers and gateways for the tests, each started from its own environment (``make endpoints``)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from continuum_server.bound_process import BoundProcess
from continuum_server.local_model import TINY, ensure_model
from continuum_server.ports import hold_port
from waiting import until

ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".endpoints"
SYSTEM_PORT = 8081
"""Of Dynamo's worker, if it is told so (``DYN_SYSTEM_PORT``)."""
SANDBOX = ("bwrap", "--dev-bind", "/", "/", "--unshare-net")
"""A network of its own, with a loopback device only: some parts listen on all interfaces."""
ALONE = "CONTINUUM_ALONE"
"""Set in the environment of a process that runs in a sandbox already (benchmarks/ways.py)."""

KEY = "sk-7f0c1d6a2b9e48358c41e0d5a6f39b72"
"""Of the clients; LiteLLM wants a long one."""
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
BODIES: dict[str, Callable[[str], dict[str, Any]]] = {
    "chat/completions": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
    "completions": lambda text: {"prompt": text, "max_tokens": 4},
    "responses": lambda text: {"input": text, "max_output_tokens": 16},
    "messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
}
"""A request of each route that generates text."""
LITELLM = Path(__file__).with_name("litellm.json")
"""Its configuration, for a server at <URL>."""
DYNAMO = Path(__file__).with_name("dynamo.env")
"""Its environment variables, for logs and records in <FOLDER>."""

DYNAMO_WORKER = """
import runpy, sys, types
stub = types.ModuleType("transformers.models.qwen2_vl.image_processing_qwen2_vl")  # the real one needs torchvision
stub.smart_resize = None
sys.modules[stub.__name__] = stub
if __name__ == "__main__":
    runpy.run_module("continuum_server.dynamo_worker", run_name="__main__")
"""
"""A script that runs our worker for Dynamo (``environment("dynamo-vllm")``)."""

_RELAY = """
import asyncio, contextlib, sys
async def pipe(reader, writer):
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
here, to = sys.argv[1:]
async def serve(reader, writer):
    try:
        there = await (asyncio.open_unix_connection(to) if "/" in to else asyncio.open_connection("127.0.0.1", to))
    except OSError:
        return writer.close()
    await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))
async def main():
    start = asyncio.start_unix_server(serve, here) if "/" in here else asyncio.start_server(serve, "127.0.0.1", here)
    async with await start as server:
        await server.serve_forever()
asyncio.run(main())
"""
"""From a Unix socket, which a sandbox shares with the tests, to a port in it, and from a port here to the socket."""


@dataclass
class Gateway:
    """A router or gateway that runs."""

    name: str
    http: httpx.Client
    """Its base URL is the root."""
    log: Path
    url: str
    """Of its root."""
    system: httpx.Client | None = None
    """The system port of Dynamo's worker."""
    workers: list[int] = field(default_factory=list)
    """Dynamo's workers and Ray's replicas, by process id."""
    trace: Path | None = None
    """Dynamo's record of requests."""

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def traced(self) -> list[dict[str, Any]]:
        """Dynamo's record of each request that ended."""
        assert self.trace is not None
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        events = [json.loads(line)["event"] for line in lines]
        return [event for event in events if event.get("event_type") == "request_end"]

    def wait_for(self, found: Callable[[], Any]) -> Any:
        """What is found, once it is."""
        return until(found, 60.0, self.log)


def environment(name: str) -> Path:
    """The environment's folder of programs; skips the test if it is not there."""
    found = ENVIRONMENTS / name / "bin"
    if not (found / "python").exists():
        pytest.skip(f"{name} is not there: `make endpoints` could not install it from PyPI")
    return found


@contextmanager
def gateway(name: str, servers: Sequence[str], folder: Path, options: Sequence[str] = ()) -> Iterator[Gateway]:
    """Start a router or gateway in front of the servers at these root URLs."""
    log = folder / f"{name}.log"
    with ExitStack() as stack:
        port = stack.enter_context(hold_port("127.0.0.1", 0)).getsockname()[1]
        metrics = str(stack.enter_context(hold_port("127.0.0.1", 0)).getsockname()[1])
        here = ["--host", "127.0.0.1", "--port", str(port)]
        router = [*here, "--prometheus-host", "127.0.0.1", "--prometheus-port", metrics, "--worker-urls", *servers]
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False))
        if name == "litellm":
            config = folder / "litellm.json"
            config.write_text(LITELLM.read_text().replace("<URL>", servers[0]))
            command = [environment(name) / name, "--config", config, *here]
        elif name == "smg":
            command = [environment(name) / name, "launch", *router]
        else:
            command = [environment(name) / "python", "-m", f"{name.replace('-', '_')}.launch_router", *router]
            command += ["--policy", "consistent_hash"] if name == "vllm-router" else []
        command += options
        process = _started(command, log, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MASTER_KEY=KEY)
        stack.callback(process.kill)
        ready = "/health/liveliness" if name == "litellm" else "/v1/models"
        _wait(process, log, lambda: client.get(ready, headers=AUTHORIZED).status_code == 200)
        yield Gateway(name, client, log, f"http://127.0.0.1:{port}")


@contextmanager
def dynamo(folder: Path, workers: int = 1, options: str = "", worker: str = "") -> Iterator[Gateway]:
    """Dynamo's frontend with session affinity, and workers, in a sandbox.

    Args:
        folder: of logs and records.
        workers: how many.
        options: more options of the frontend.
        worker: the shell command of a worker that serves model ``m``; empty: a mocked one.
    """
    python = environment("dynamo") / "python"
    model = ensure_model(TINY)
    mocked = f"{python} -m dynamo.mocker --model-path {model} --model-name m --block-size 16 "
    mocked += "--num-gpu-blocks-override 4000 --max-model-len 8192 --speedup-ratio 20"
    variables = dict(line.split("=", 1) for line in DYNAMO.read_text().replace("<FOLDER>", str(folder)).splitlines())
    script = f"""
        {python} -m dynamo.frontend --http-host 127.0.0.1 --http-port 8000 --enable-anthropic-api \
            --router-mode kv --router-session-affinity-ttl-secs 600 {options} &
        for number in $(seq {workers}); do
            DYN_REQUEST_TRACE=0 {worker or mocked} &
            echo $! >> {folder}/pids
        done
        wait
    """
    if ALONE in os.environ:
        variables["DYN_REQUEST_TRACE"] = "0"  # a benchmark measures Dynamo without its record
    (folder / "discovery").mkdir()
    with _sandboxed("dynamo", folder, script, variables) as (gate, _):
        gate.workers = [int(line) for line in (folder / "pids").read_text().split()]
        gate.trace = folder / "trace.jsonl"
        yield gate


@contextmanager
def ray_serve(folder: Path, arguments: Sequence[str], **variables: str) -> Iterator[Gateway]:
    """Ray Serve with deploy/ray_serve.py, in a sandbox.

    Args:
        folder: of the log.
        arguments: of ``serve run``.
        variables: environment variables, also of the servers.
    """
    serve = environment("ray") / "serve"
    paths = ":".join(str(ENVIRONMENTS.parent / name) for name in ("deploy", "server_patch", "traces"))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:  # a socket's path has at most 107 characters
        variables = {"RAY_TMPDIR": short, "PYTHONPATH": paths, **quiet, **variables}
        script = f"exec {serve} run {shlex.join(arguments)}"
        with _sandboxed("ray", folder, script, variables) as (gate, process):
            gate.workers = [each.pid for each in _descendants(process) if "ServeReplica" in " ".join(each.cmdline())]
            try:
                yield gate
            finally:
                left = _descendants(process)
                process.kill()
                for each in psutil.wait_procs(left, 30.0)[1]:
                    each.kill()


@contextmanager
def _sandboxed(
    name: str, folder: Path, script: str, variables: Mapping[str, str]
) -> Iterator[tuple[Gateway, BoundProcess]]:
    """Run a shell script whose programs serve on port 8000, and the system port 8081, of a network of their own."""
    log, alone = folder / f"{name}.log", ALONE in os.environ
    if not alone and (
        shutil.which("bwrap") is None or subprocess.run([*SANDBOX, "true"], capture_output=True).returncode
    ):
        pytest.skip("bubblewrap may not make namespaces here")
    with tempfile.TemporaryDirectory() as short, ExitStack() as stack:  # as above
        sockets = {port: f"{short}/{port}" for port in (8000, SYSTEM_PORT)}
        relays = "".join(f'{sys.executable} -c "$0" {path} {port} &\n' for port, path in sockets.items())
        command = ["bash", "-c", script] if alone else [*SANDBOX, "bash", "-c", relays + script, _RELAY]
        process = _started(command, log, **variables)
        stack.callback(process.kill)
        port = "8000"
        if not alone:
            port = str(stack.enter_context(hold_port("127.0.0.1", 0)).getsockname()[1])
            stack.callback(_started([sys.executable, "-c", _RELAY, port, sockets[8000]], log).kill)
        url = f"http://127.0.0.1:{port}"
        limits = httpx.Limits(max_connections=None)
        client = stack.enter_context(httpx.Client(base_url=url, limits=limits, timeout=60.0, trust_env=False))
        transport = httpx.HTTPTransport(uds=sockets[SYSTEM_PORT])
        system = stack.enter_context(httpx.Client(base_url="http://system", transport=transport, timeout=60.0))
        _wait(process, log, lambda: bool(client.get("/v1/models").json()["data"]), 900.0)
        yield Gateway(name, client, log, url, system), process


def _descendants(process: BoundProcess) -> set[psutil.Process]:
    with suppress(psutil.Error):
        return {*psutil.Process(process.process.pid).children(recursive=True)}
    return set()


def _started(command: Sequence[object], log: Path, **variables: str) -> BoundProcess:
    environ = {"PATH": os.environ["PATH"], "HOME": str(log.parent), "DO_NOT_TRACK": "1", **variables}
    with log.open("ab") as file:
        return BoundProcess([str(word) for word in command], environ, file)


def _wait(process: BoundProcess, log: Path, ready: Callable[[], bool], seconds: float = 240.0) -> None:
    def is_ready() -> bool:
        assert process.ended is None, log.read_text()[-3000:]
        with suppress(httpx.TransportError, ValueError):
            return ready()
        return False

    until(is_ready, seconds, log)
