"""What an engine says of itself during a live run, under vLLM's, SGLang's or TensorRT-LLM's names.

Sources: vLLM's, SGLang's and trtllm-serve's lists of Prometheus metrics. SGLang calls a preemption a retraction;
TensorRT-LLM counts none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from continuum_traces.records.run_dir import SERVER_METRICS

Row = Mapping[str, float]
GAUGES: dict[str, tuple[str, ...]] = {
    "kv_used": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    ),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting"),
}
"""Names of each quantity, the newest of an engine first. KV in use is a share."""
PREEMPTIONS = ("vllm:num_preemptions_total", "sglang:num_retracted_reqs_total", "sglang:num_retracted_requests_total")
HIT_COUNTERS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
    ("trtllm_prompt_cached_tokens_total", "trtllm_prompt_tokens_total"),
)
"""Counters of cached tokens and of the prompts' tokens."""
HIT_RATES = ("sglang:cache_hit_rate", "trtllm_kv_cache_hit_rate")
"""Gauges of the same, for engines without these counters."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """An engine's numbers by time; a quantity that it does not report is not there."""

    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    """Seconds of the run and values of ``kv_used``, ``running``, ``waiting`` and ``preemptions`` (since the start)."""
    hit_ratio: float | None
    """Cached share of the prompts' tokens in the run."""


def server_load(folder: Path) -> ServerLoad | None:
    """Read the numbers of a run's directory; None: there are none."""
    if not (folder / SERVER_METRICS).exists():
        return None
    rows = _rows(folder / SERVER_METRICS)
    series = {name: _values(rows, names) for name, names in GAUGES.items()}
    times_s, counts = _values(rows, PREEMPTIONS)
    series["preemptions"] = times_s, [count - counts[0] for count in counts]
    there = {name: each for name, each in series.items() if each[0]}
    return ServerLoad(there, _hit_ratio(rows)) if there else None


def _rows(path: Path) -> list[Row]:
    """Return the lines of the file; the last of a killed process may be cut off."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _values(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[float], list[float]]:
    name = next((name for name in names if any(name in row for row in rows)), "")
    points = [(row["t_s"], row[name]) for row in rows if name in row]
    return [at_s for at_s, _ in points], [value for _, value in points]


def _hit_ratio(rows: Sequence[Row]) -> float | None:
    for hits, tokens in HIT_COUNTERS:
        both = [row for row in rows if hits in row and tokens in row]
        if both and (more := both[-1][tokens] - both[0][tokens]) > 0:
            return (both[-1][hits] - both[0][hits]) / more
    _, rates = _values(rows, HIT_RATES)
    return rates[-1] if rates else None
