"""Options whose values have a form of their own, or name something: each is read once before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from continuum_server.policy.catalog import PolicyError
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.profile import read_profile
from continuum_server.virtual.offload import OffloadError, read_offload
from continuum_server.virtual.routers import ROUTERS, VLLM_ROUTER_NAMES
from continuum_traces.names import which

from continuum_bench.errors import BenchError
from continuum_bench.live.plan import read_edge
from continuum_bench.options.declare import OptionError, check
from continuum_bench.options.policies import arms_of
from continuum_bench.options.run import RunOptions
from continuum_bench.virtual.engine_options import read_death
from continuum_bench.workload.arrivals import arrival_times
from continuum_bench.workload.hints import hint_error
from continuum_bench.workload.tool_times import tool_times
from continuum_client.dialects import DIALECTS


def _one_of(names: Mapping[str, object]) -> Callable[[str], object]:
    def read(name: str) -> None:
        if name not in names:
            raise BenchError(which(name, names))

    return read


READERS: Mapping[str, Callable[[Any], object]] = {
    "policy": arms_of,
    "gpu": find_gpu,
    "model": find_model,
    "profile": lambda path: read_profile(Path(path)),
    "offload": lambda preset: read_offload(preset, RunOptions.gpu),
    "router": _one_of({**ROUTERS, **VLLM_ROUTER_NAMES}),
    "kill_replica": read_death,
    "arrivals": arrival_times,
    "tool_times": tool_times,
    "hint_error": hint_error,
    "warm_up": lambda text: read_edge("--warm-up", text),
    "cool_down": lambda text: read_edge("--cool-down", text),
    "dialect": _one_of(DIALECTS),
}
"""What reads the value of an option, by the field's name. Its error may begin with ``--option VALUE:``."""


def check_value(name: str, value: Any, hint: Any, where: str) -> None:
    """Refuse a value that is outside its option's limit or cannot be read.

    Raises:
        BenchError: ``where`` and why.
    """
    try:
        check(name, value, hint)
        if value is not None and name in READERS:
            READERS[name](value)
    except (BenchError, OffloadError, OptionError, PolicyError, StepTimesError) as error:
        text = str(error)
        raise BenchError(f"{where}: {text.partition(' ')[2] if text.startswith('--') else text}") from error
