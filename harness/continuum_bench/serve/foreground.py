"""``continuum-bench serve``: start a server and wait until a signal stops it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from types import FrameType

from continuum_server.launcher import Server, client_line
from continuum_server.policy.base import Policy
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import PolicyError, find_policy
from continuum_server.server_command import (
    has_random_weights,
    longest_request,
    model_name,
    needs_key,
    tokenizer_folder,
)
from continuum_server.server_config import STOCK, ServerConfig, ServerError

from continuum_bench.errors import BenchError
from continuum_bench.live.endpoint import NO_ANSWER, get_json
from continuum_bench.options.declare import declared
from continuum_bench.options.policies import read_policy_options
from continuum_bench.options.serve import ServeOptions
from continuum_bench.serve.config import server_config
from continuum_bench.show import print_line, print_notice
from continuum_bench.top import States

OF_KEYS = ("key_lag", "key_weight")
OF_THE_PLUGIN = (
    *("record", "statistics", "profile", "recognise", "session_header", "key_weight", "tenant_header"),
    *(field.name for field in fields(Guards)),
)
LACKS = "records nothing and reads no ids; --policy vllm keeps its order and records"
TEARDOWN_S = 15
"""Seconds that a stopping server gets beyond its time to drain."""


def serve_until_stopped(options: ServeOptions, vllm_arguments: tuple[str, ...]) -> int:
    """Start a server, print its address, and wait until it ends.

    Once the server is ready, the first signal lets running requests finish, and the second signal stops it at once.

    Returns:
        0 after a signal; 1 if the server ended by itself.

    Raises:
        ServerError, EmulatedError: the server cannot start.
        KeyboardInterrupt: a signal came before the server was ready. No process is left.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = _config(options, vllm_arguments)
    server = Server(config, options.log)
    try:
        _print_longest(config)
        server.wait_until_healthy(options.ready_timeout_s)
        stopping = _stop_on_signals(server)
        _announce(server)
        return _wait(server, stopping)
    finally:
        server.kill()  # vLLM that is stopped before it is ready may wait ten minutes for its engine


def _print_longest(config: ServerConfig) -> None:
    """Print the length of the longest request, if the number of KV blocks limits it."""
    longest = longest_request(config)
    if longest not in (None, config.max_model_len):
        tokens = "as many tokens as vLLM says in its log" if longest == "auto" else f"{longest} tokens"
        limit = f"longest prompt plus output: {tokens}, what the KV blocks hold"
        print_notice(f"{limit}; --max-model-len sets a shorter one")


def _wait(server: Server, stopping: Sequence[int]) -> int:
    """Wait until the server ends, and return the exit status. It is killed if it does not end within its time to
    drain."""
    patience = server.config.drain_s + TEARDOWN_S
    while True:
        try:
            with suppress(subprocess.TimeoutExpired):
                server.wait(1.0)
                return 0
        except ServerError as error:
            print_notice(f"error: {error}")
            return 1
        if stopping:
            patience -= 1
            if patience <= 0:
                print_notice("it did not stop in time and is killed")
                server.kill()


def _config(options: ServeOptions, vllm_arguments: tuple[str, ...]) -> ServerConfig:
    policy, given = options.policy, options.policy_option or []
    if policy == STOCK and given:
        raise BenchError(f"--policy-option {given[0]}: policy {STOCK} is vLLM's own scheduler, which has none")
    _notice_unused(options)
    return server_config(options, read_policy_options(given, [policy]).get(policy, {}), vllm_arguments)


def _notice_unused(options: ServeOptions) -> None:
    """Say which of the given options do nothing."""
    if options.policy == STOCK:
        _notice_given(options, OF_THE_PLUGIN, f"policy {STOCK} is vLLM's own scheduler, which {LACKS}")
        return
    if options.fair == "none":
        _notice_given(options, OF_KEYS, "with --fair none the order of requests does not depend on keys")
    with suppress(PolicyError):  # a wrong name is refused later, with the names that there are
        if find_policy(options.policy).export_statistics is Policy.export_statistics:
            _notice_given(options, ("statistics",), f"policy {options.policy} learns no times of tools")


def _notice_given(options: ServeOptions, of: Sequence[str], why: str) -> None:
    given = (option for name, option in declared(ServeOptions).items() if name in of)
    unused = [option.spelling for option in given if option.is_given(getattr(options, option.name))]
    if unused:
        print_notice(f"{', '.join(unused)} {'does' if len(unused) == 1 else 'do'} nothing: {why}")


def _stop_on_signals(server: Server) -> list[int]:
    """Install the signal handlers. Returns a list to which each received signal is appended."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            print_notice(f"stopping; requests have {server.config.drain_s} s to finish, again stops at once")
            server.terminate()
        else:
            server.kill_group()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return received


def _announce(server: Server) -> None:
    config = server.config
    note = {
        "gpu": "",
        "emulated": f" on an emulated {config.emulated.gpu}; step times are modelled, answers scripted or filler",
        "cpu": f" on this CPU; model {model_name(config)}{', random weights' * has_random_weights(config)}",
    }[config.engine]
    engines = f", {config.data_parallel_size} engines" if config.data_parallel_size > 1 else ""
    print_line(f"ready: {server.url}/v1, policy {config.policy}{engines}, server {server.name}{note}")
    print_line(client_line(server.url, config))
    folder = tokenizer_folder(config)
    if folder is not None:
        print_line(f"tokenizer: {folder}")
    if config.policy != STOCK:
        print_line(f"state: {server.url}/continuum/state (server {server.name})")
    _print_groups(server)


def _print_groups(server: Server) -> None:
    """Say which KV cache groups the model has, and what a hold keeps of them, if the server tells it."""
    config = server.config
    if config.policy == STOCK or needs_key(config) or not server.url.startswith("http:"):
        return
    with suppress(*NO_ANSWER):
        for line in get_json(f"{server.url}/continuum/state", None, States).engines[0].kv_groups:
            print_line(f"kv: {line}")
