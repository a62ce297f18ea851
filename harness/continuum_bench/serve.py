"""``continuum-bench serve``: options in, a server until a signal comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import typer
from continuum_server.emulated.settings import EmulatedError, EmulatedSettings
from continuum_server.fleet import Fleet
from continuum_server.launcher import Server, client_line
from continuum_server.server_command import longest_request, model_name
from continuum_server.server_config import STOCK, ServerConfig, ServerError

from continuum_bench.errors import BenchError
from continuum_bench.option_checks import check_at_least, check_modelled_gpu, read_guards
from continuum_bench.policy_options import read_policy_options

TEARDOWN_S = 15
"""Seconds beyond the drain that a stopping server gets."""


def serve_until_stopped(options: Mapping[str, Any], vllm_arguments: tuple[str, ...]) -> int:
    """Start, say where it is, wait. Once ready the first signal drains, the second stops at once.

    Returns:
        0 after a stop that was asked for; 1 where the server ended by itself.

    Raises:
        BenchError: it cannot start.
        KeyboardInterrupt: a signal before it was ready; no process is left.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        config = _config(options, vllm_arguments)
        server = _server(config, options)
    except (ServerError, EmulatedError) as error:
        raise BenchError(str(error)) from error
    try:
        _say_longest(config)
        _start(server, options["ready_timeout_s"])
        stopping = _stop_on_signals(server)
        _announce(server)
        _wait(server, stopping)
    except ServerError as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    finally:
        server.kill()  # after a signal before it is ready: vLLM may wait ten minutes for a half-made engine
    return 0


def _server(config: ServerConfig, options: Mapping[str, Any]) -> Server | Fleet:
    """One server, or several behind a router."""
    replicas, health_port = options["replicas"], options["health_port"]
    if replicas > 1:
        return Fleet(config, replicas, options["router"], options["log"], _say, health_port or 0)
    if health_port is not None:
        raise BenchError(f"--health-port {health_port}: for --replicas 2 or more; one server answers /health itself")
    return Server(config, options["log"])


def _say_longest(config: ServerConfig) -> None:
    """Where the KV blocks set it, neither the user nor the model."""
    longest = longest_request(config)
    if longest not in (None, config.max_model_len):
        tokens = "as many tokens as vLLM says in its log" if longest == "auto" else f"{longest} tokens"
        _say(f"longest prompt plus output: {tokens}, what the KV blocks hold; --max-model-len sets a shorter one")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _start(server: Server | Fleet, timeout_s: float) -> None:
    try:
        server.wait_until_healthy(timeout_s)
    except ServerError as error:
        raise BenchError(str(error)) from error


def _wait(server: Server | Fleet, stopping: Sequence[int]) -> None:
    """Until it ends; one that does not end after its time to drain is killed."""
    patience = server.config.drain_s + TEARDOWN_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            return server.wait(1.0)
        if stopping:
            patience -= 1
            if patience <= 0:
                _say("it did not stop in time and is killed")
                server.kill()


def _config(options: Mapping[str, Any], vllm_arguments: tuple[str, ...]) -> ServerConfig:
    policy = options["policy"]
    check_at_least(options, _LEAST)
    check_modelled_gpu(options["gpu_memory_utilization"], options["step_overhead_ms"])
    emulated = EmulatedSettings(
        gpu=options["gpu"],
        tensor_parallel=options["tp"],
        gpu_memory_utilization=options["gpu_memory_utilization"],
        step_overhead_ms=options["step_overhead_ms"],
        time_scale=options["time_scale"],
        replies=str(options["replies"].absolute()) if options["replies"] else None,
    )
    guards = read_guards(**{name: options[name] for name in _GUARDS})
    parser, given = options["tool_call_parser"], options["policy_option"] or []
    if policy == STOCK and given:
        raise BenchError(f"--policy-option {given[0]}: policy {STOCK} is vLLM's own scheduler, which has none")
    of_policy = read_policy_options(given, [policy]).get(policy, {})
    return ServerConfig(
        policy=policy,
        policy_options=of_policy,
        guards=guards,
        emulated=emulated,
        tool_call_parser=None if parser in (None, "none") else parser,
        gpus=options["tp"],
        vllm_arguments=vllm_arguments
        + gpu_arguments(options["engine"], options["tp"], options["gpu_memory_utilization"]),
        **{name: options[name] for name in _SAME},
    )


_SAME = (
    *("engine", "model", "host", "port", "max_num_seqs", "chunk_tokens", "block_size", "kv_blocks"),
    *("max_model_len", "record", "statistics", "profile", "drain_s"),
)
"""Options that are fields of ``ServerConfig`` under the same name."""

_LEAST = dict.fromkeys(("max_num_seqs", "chunk_tokens", "block_size", "max_model_len", "tp", "replicas"), 1) | {
    "kv_blocks": 2,
    "port": 0,
    "drain_s": 0,
}
"""Whole numbers that vLLM would refuse late, in a traceback."""

_GUARDS = ("max_ttl_s", "max_pinned_share", "max_pins_per_client", "pins_yield_to", "max_overtake_s")
"""Options that are fields of ``Guards`` under the same name."""


def gpu_arguments(engine: str, tensor_parallel: int, memory_utilization: float) -> tuple[str, ...]:
    """On a real GPU these two are vLLM's own options."""
    if engine != "gpu":
        return ()
    return ("--tensor-parallel-size", str(tensor_parallel), "--gpu-memory-utilization", str(memory_utilization))


def _stop_on_signals(server: Server | Fleet) -> list[int]:
    """Signals received so far; each is acted on as it comes."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            _say(f"stopping; requests have {server.config.drain_s} s to finish, again stops at once")
            server.terminate()
        else:
            server.kill_group()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return received


def _announce(server: Server | Fleet) -> None:
    config = server.config
    what = {
        "gpu": "",
        "emulated": f" on an emulated {config.emulated.gpu}; step times are modelled, answers scripted or filler",
        "cpu": " on this CPU; a tiny model with random weights",
    }[config.engine]
    number = f", {len(server.servers)} replicas" if isinstance(server, Fleet) else ""
    typer.echo(f"ready: {server.url}/v1, policy {config.policy}{number}{what}")
    typer.echo(client_line(server.url, model_name(config)))
    if isinstance(server, Fleet):
        typer.echo(f"health: {server.health_url}")
    for one in server.servers if isinstance(server, Fleet) else [server]:
        typer.echo(f"state: {one.url}/continuum/state")
    sys.stdout.flush()
