"""Values of options that several commands share, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from continuum_server.policy.program_table import GuardError, Guards

from continuum_bench.errors import BenchError


def read_guards(**options: Any) -> Guards:
    """Guards from options of their fields' names; those not given keep their defaults.

    Raises:
        BenchError: a value out of range; names the option as it stands on the command line.
    """
    try:
        return Guards(**options)
    except GuardError as error:
        raise BenchError(f"--{error.name.replace('_', '-')} {error.given}: {error.allowed}") from error


def check_modelled_gpu(memory_utilization: float, step_overhead_ms: float) -> None:
    """Raises:
    BenchError: a share of memory or an overhead that cannot be.
    """
    if not 0 < memory_utilization <= 1:
        raise BenchError(f"--gpu-memory-utilization {memory_utilization:g}: must be above 0, at most 1")
    if not 0 <= step_overhead_ms < inf:
        raise BenchError(f"--step-overhead-ms {step_overhead_ms:g}: must not be negative or infinite")


def check_at_least(values: Mapping[str, int | None], least: Mapping[str, int]) -> None:
    """Each of ``least`` by its name in ``values``; None there leaves the choice to others.

    Raises:
        BenchError: one below; names the option as it stands on the command line.
    """
    for name, bound in least.items():
        given = values[name]
        if given is not None and given < bound:
            raise BenchError(f"--{name.replace('_', '-')} {given}: must be at least {bound}")
