"""Small runs written by hand, with first tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import EVENTS, TURNS, rows_of, write_json, write_manifest, write_rows
from continuum_traces.schema import Hardware, Manifest, SchedulerEvent, TurnRecord, Workload

GAP_S = 100.0
"""From one program's arrival to the next one's, unless told."""


def write_recorded(
    path: Path,
    policy: str,
    seed: int,
    ends_s: list[float],
    ttft_s: float = 0.5,
    output_tokens: int = 11,
    gap_s: float = GAP_S,
    unfinished: int = 0,
    token_gaps_ms: Mapping[str, int] | None = None,
    queued: float = 0.0,
    **workload: Any,
) -> Path:
    """Programs of one turn: program n takes ``ends_s[n]`` seconds, this share of them queued. The last ``unfinished``
    never end."""
    path.mkdir(parents=True)
    facts = Workload(**{"name": "w", "sha256": "a" * 64, "jps": 1.0, **workload})
    hardware = Hardware(gpu="g", model="m", tensor_parallel=2)
    write_manifest(path, Manifest(policy=policy, seed=seed, engine="virtual", workload=facts, hardware=hardware))
    events, records = [], []
    for number, end_s in enumerate(ends_s):
        name, t, ends = f"p{number}", gap_s * number, number < len(ends_s) - unfinished
        events.append(SchedulerEvent(t, "arrive", name, 0, prompt_tokens=64))
        events.append(SchedulerEvent(t + queued * end_s, "start", name, 0, prompt_tokens=64, hit_tokens=0))
        if ends:
            events.append(SchedulerEvent(t + end_s, "finish", name, 0, output_tokens=output_tokens, status="stop"))
        finish_s = t + end_s if ends else None
        record = TurnRecord(name, 0, t, t, t + ttft_s, finish_s, output_tokens=output_tokens, is_last=True)
        records.append(replace(record, token_gaps_ms=token_gaps_ms))
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", rows_of(path))
    return path
