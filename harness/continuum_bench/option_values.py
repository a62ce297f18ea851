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

READERS: Mapping[str, Callable[[Any], object]] = {
    "policy": arms_of,
    "gpu": find_gpu,
    "model": find_model,
    "profile": lambda path: read_profile(Path(path)),
    "speculative": read_speculation,
    "offload": lambda preset: read_offload(preset, RunOptions.gpu),
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
