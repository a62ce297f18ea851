"""Small runs written by hand, with first tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from continuum_traces.json_io import write_json
from continuum_traces.records import rows_of, write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS, write_manifest
from continuum_traces.schema import Engine, Hardware, KvPool, Manifest, SchedulerEvent, TurnRecord, Workload

E = SchedulerEvent
GAP_S = 100.0
"""From one program's arrival to the next one's, unless told."""


def verdict_in(html: str) -> str:
    """The verdict of a report, both parts of it."""
    return unescape(" ".join(re.findall(r'<p class="(?:verdict|then)">([^<]*)</p>', html)))


def flags_in(html: str) -> list[str]:
    """The options of a command line that a report names, outside its record of the command."""
    said = re.sub(r'(?s)<(style|script)>.*?</\1>|<table class="facts">.*?</table>|<[^>]+>', " ", html)
    return re.findall(r"(?<![\w-])--[a-z][\w-]*", said)


def served(
    program: str,
    turn: int,
    arrive_s: float,
    prompt: int,
    hit: int = 0,
    wait_s: float = 1.0,
    run_s: float = 2.0,
    status: str = "stop",
    output_tokens: int = 5,
    tool: str | None = None,
    **ids: Any,
) -> list[SchedulerEvent]:
    """A request that waits, then runs."""
    start_s = arrive_s + wait_s
    answer = {"output_tokens": output_tokens, "status": status, "tool": tool, **ids}
    return [
        E(arrive_s, "arrive", program, turn, prompt_tokens=prompt, **ids),
        E(start_s, "start", program, turn, prompt_tokens=prompt, hit_tokens=hit, **ids),
        E(start_s + run_s, "finish", program, turn, **answer),
    ]


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
    turns: int = 1,
    hit_tokens: int = 0,
    pin_s: float | None = None,
    engine: Engine | None = None,
    names: str = "p{}",
    **workload: Any,
) -> Path:
    """Program n takes ``ends_s[n]`` seconds: turns of equal length, this share of each queued, with a tool of a second
    after each but the last. Returning turns find so many tokens; a pin of so many seconds has expired before. The last
    ``unfinished`` programs never end."""
    path.mkdir(parents=True)
    facts = Workload(**{"name": "w", "sha256": "a" * 64, "jps": 1.0, **workload})
    hardware = Hardware(gpu="g", model="m", tensor_parallel=2, kv_capacity=KvPool(tokens=1000))
    played = {"engine": "virtual", "workload": facts, "hardware": hardware, "engine_options": engine or Engine()}
    write_manifest(path, Manifest(policy=policy, seed=seed, **played))  # type: ignore[arg-type]
    events, records = [], []
    for number, end_s in enumerate(ends_s):
        name, t, took_s = names.format(number), gap_s * number, (end_s - (turns - 1)) / turns
        for turn in range(turns):
            is_last, hit, wait_s = turn == turns - 1, hit_tokens if turn else 0, queued * took_s
            finish_s = None if is_last and number >= len(ends_s) - unfinished else t + took_s
            rest: Any = {"output_tokens": output_tokens, "tool": None if is_last else "ls"}
            rows = served(name, turn, t, 64 + turn, hit, wait_s, took_s - wait_s, **rest)
            events += rows if finish_s is not None else rows[:2]
            if pin_s is not None and not is_last:
                events.append(E(t + took_s, "pin", name, turn, ttl_s=pin_s, tokens=64))
                events.append(E(t + took_s + pin_s, "unpin", name, turn, reason="expired"))
            record = TurnRecord(name, turn, t, t, t + ttft_s, finish_s, output_tokens=output_tokens, is_last=is_last)
            records.append(replace(record, token_gaps_ms=token_gaps_ms))
            t += took_s + 1.0
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", rows_of(path))
    return path
