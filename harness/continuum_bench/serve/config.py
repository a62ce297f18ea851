"""Converts the options of ``serve`` to the configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from continuum_server import defaults
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.policy.limits import LimitError
from continuum_server.policy.program_table import Guards
from continuum_server.server_command import check_classes
from continuum_server.server_config import ServerConfig

from continuum_bench.errors import BenchError
from continuum_bench.options.serve import ServeOptions


def server_config(
    options: ServeOptions, policy_options: Mapping[str, Any], vllm_arguments: tuple[str, ...] = ()
) -> ServerConfig:
    """Return the configuration of one server.

    Args:
        options: the options of ``serve``.
        policy_options: the decoded options of the policy.
        vllm_arguments: arguments that are passed on to vLLM.

    Raises:
        BenchError: a limit on pins is out of range.
        EmulatedError: a setting of the emulated GPU is out of range.
        ServerError: as ``check_classes``.
    """
    emulated = {
        **options.shared_with(EmulatedSettings),
        "model": defaults.MODEL,
        "tensor_parallel": options.tp,
        "replies": str(options.replies.absolute()) if options.replies else None,
    }
    config = {
        **options.shared_with(ServerConfig),
        "policy_options": dict(policy_options),
        "guards": _guards(options),
        "emulated": EmulatedSettings(**emulated),
        "tool_call_parser": None if options.tool_call_parser == "none" else options.tool_call_parser,
        "gpus": options.tp,
        "key_weights": _weights(options.key_weight or ()),
        "session_headers": _headers(options.session_header or ()),
        "vllm_arguments": vllm_arguments,
    }
    made = ServerConfig(**config)
    check_classes(made)
    return made


def _headers(given: Sequence[str]) -> tuple[str, ...]:
    """Return names of headers."""
    for name in given:
        if not (name.isascii() and 0 < len(name) <= 128 and all(char.isalnum() or char in "-_." for char in name)):
            raise BenchError(f"--session-header {name}: expected the name of a header, of letters, digits and -_.")
    return tuple(given)


def _weights(given: Sequence[str]) -> dict[str, float]:
    """Return the weights in texts of the form ``NAME=WEIGHT``."""
    weights: dict[str, float] = {}
    for number, text in enumerate(given, 1):
        name, _, weight = text.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            name = ""
        if not name or not 0.0 < weights[name] < inf:
            raise BenchError(f"--key-weight (number {number}): expected KEY=WEIGHT with a weight above 0")
    return weights


def _guards(options: ServeOptions) -> Guards:
    try:
        return Guards(**options.shared_with(Guards))
    except LimitError as error:
        raise BenchError(f"--{error.name.replace('_', '-')} {error.given}: must be {error.allowed}") from error
