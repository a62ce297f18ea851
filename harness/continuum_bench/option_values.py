"""Reads option values from YAML, and checks those whose text has a form or names something.

A command line is checked by the command that uses the value. An experiment file and a sweep's grid are checked here,
before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
from continuum_server.policy.registry import PolicyError
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.profile import read_profile
from continuum_server.step_times.speculation import read_speculation
from continuum_server.virtual.offload import OffloadError, read_offload

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import Declared
from continuum_bench.options.policies import arms_of
from continuum_bench.options.run import RunOptions
from continuum_bench.workload.arrivals import arrival_times
from continuum_bench.workload.hints import hint_error, hint_kind
from continuum_bench.workload.started import read_shares
from continuum_bench.workload.tool_times import tool_times
from continuum_bench.workload.window import read_cool_down, read_warm_up


def read_percent(text: str) -> float:
    """Read ``3%`` as 0.03.

    Raises:
        BenchError: the text has another form, or is not above 0.
    """
    number = text.removesuffix("%")
    if number == text or not number.replace(".", "", 1).isdecimal() or float(number) == 0:
        raise BenchError(f"--until {text}: expected a share above 0, such as 3%")
    return float(number) / 100


READERS: Mapping[str, Callable[[Any], object]] = {
    "policy": arms_of,
    "gpu": find_gpu,
    "model": find_model,
    "profile": lambda path: read_profile(Path(path)),
    "speculative": read_speculation,
    "offload": lambda preset: read_offload(preset, RunOptions.gpu),
    "arrivals": arrival_times,
    "tool_times": tool_times,
    "hints": hint_kind,
    "hint_error": hint_error,
    "start_within": read_shares,
    "warm_up": read_warm_up,
    "cool_down": read_cool_down,
    "until": read_percent,
}
"""The function that parses an option's value, by field name. Its error may begin with ``--option VALUE:``."""


def read_value(option: Declared, given: Any, where: str) -> Any:
    """Convert a value from YAML to the option's type, and check its limits and its form.

    Args:
        option: the declaration of the option.
        given: the decoded YAML.
        where: the beginning of the error message.

    Raises:
        BenchError: the value is of another type, violates a limit or cannot be parsed.
    """
    given = _as_text(given, option)
    try:
        value = msgspec.convert(given, option.plain_type, dec_hook=lambda kind, text: kind(text))
    except (msgspec.ValidationError, TypeError) as error:
        wanted = str(error).removeprefix("Expected `").partition("`")[0].replace(" | null", "")
        raise BenchError(f"{where}: {given!r} is no value of this option; expected {wanted}") from error
    try:
        option.check(value)
        if value is not None and option.name in READERS:
            READERS[option.name](value)
    except (BenchError, OffloadError, PolicyError, StepTimesError) as error:
        text = str(error)
        raise BenchError(f"{where}: {text.partition(' ')[2] if text.startswith('--') else text}") from error
    return value


def _as_text(value: Any, option: Declared) -> Any:
    """Convert a number for an option that takes text, and a single text for one that takes several."""
    types = get_args(option.plain_type) or (option.plain_type,)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    if list[str] in types:
        return [str(value)]
    return str(value) if str in types else value
