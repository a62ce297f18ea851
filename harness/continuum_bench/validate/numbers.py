"""Statistics of a run's requests: times and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from continuum_bench.validate.served import Served

STATISTICS = ("mean", "p50", "p99")


def numbers_of(served: Sequence[Served]) -> dict[str, float]:
    """Return times in seconds (``ttft_mean``, ``e2e_p99`` ...) and the throughput in tokens per second.

    TPOT is computed from requests with two or more tokens; it is left out if there are none.
    """
    columns = {
        "e2e": [each.finish_s - each.arrival_s for each in served],
        "ttft": [each.first_token_s - each.arrival_s for each in served],
        "tpot": [
            (each.finish_s - each.first_token_s) / (each.output_tokens - 1) for each in served if each.output_tokens > 1
        ],
    }
    known = {name: values for name, values in columns.items() if values}
    found = {f"{name}_{which}": _statistic(values, which) for name, values in known.items() for which in STATISTICS}
    span_s = max(each.finish_s for each in served) - min(each.arrival_s for each in served)
    return {**found, "output_tokens_per_s": sum(each.output_tokens for each in served) / max(span_s, 1e-9)}


def _statistic(values: Sequence[float], which: str) -> float:
    return fmean(values) if which == "mean" else float(np.quantile(values, int(which[1:]) / 100))


def errors_of(modelled: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Return ``NAME_error`` = modelled / measured - 1 for each measured number above 0."""
    return {f"{name}_error": modelled[name] / measured[name] - 1.0 for name in measured if measured[name] > 0.0}
