"""Metrics of a synthetic live run, with retries and a late load generator, computed again by other code."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from continuum_analysis.compare.summary import summarize
from continuum_analysis.metrics import analyze_run
from continuum_traces.json_io import write_json
from continuum_traces.records import read_turns, write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS, write_manifest
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord
from recorded_runs import served

OFFSET_S = 5000.0
"""What the server's clock shows at the client's 0."""
THE_CLIENTS = ("jct", "wall", "throughput_jobs", "throughput_steps", "ttft", "send_late", "tries", "programs")
"""Beginnings of the names of metrics that the scheduler's records must not change."""


def made_up(seed: int) -> tuple[list[SchedulerEvent], list[TurnRecord]]:
    """Twenty programs. The server answers 503 before a request reaches the scheduler; the client waits and tries again,
    up to three times. Requests are sent up to 0.5 s late."""
    generator, events, records = random.Random(seed), [], []
    for number in range(20):
        name, due_s, turns = f"p{number}", number * 1.7, generator.randint(1, 4)
        for turn in range(turns):
            sent_s, refused = due_s + generator.random() / 2, generator.randrange(4)
            arrive_s, is_last = sent_s + 1.5 * refused, turn == turns - 1
            start_s, finish_s = arrive_s + generator.random(), arrive_s + 1 + 3 * generator.random()
            facts: Any = {"turn_id": f"{turn}", "is_last": is_last, "failed_tries": ("http-503",) * refused}
            if refused == 3:
                failed = TurnRecord(name, turn, due_s, sent_s, finish_s=arrive_s, error="http-503: gave up", **facts)
                records.append(failed)
                break
            ids: Any = {"request_id": f"{name}/{turn}", "turn_id": f"{turn}"}
            waits = (start_s - arrive_s, finish_s - start_s)
            events += served(name, turn, arrive_s + OFFSET_S, 100, 16, *waits, output_tokens=7, **ids)
            instants = (due_s, sent_s, start_s + 0.1, finish_s + 0.05)
            records.append(TurnRecord(name, turn, *instants, 100, 7, gap_s=None if is_last else 2.0, **facts))
            due_s = finish_s + 0.05 + 2.0
    return sorted(events, key=lambda event: event.t), records


def live_run(folder: Path, seed: int = 0, events: bool = True, turns: bool = True) -> Path:
    folder.mkdir(parents=True)
    made = made_up(seed)
    write_manifest(folder, Manifest(policy="stock" if events else "other", seed=seed, engine="http://127.0.0.1:1/v1"))
    if events:
        write_rows(folder / EVENTS, made[0])
    if turns:
        write_rows(folder / TURNS, made[1])
    write_json(folder / "engine.json", {})
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_a_live_run_s_times_are_the_client_s_with_and_without_the_server_s_records(tmp_path: Path, seed: int) -> None:
    both = [analyze_run(live_run(tmp_path / str(events), seed, events)).values for events in (True, False)]
    names = [name for name in both[0] if name.startswith(THE_CLIENTS)]
    assert len(names) > 20
    assert [both[0][name] for name in names] == pytest.approx([both[1][name] for name in names], rel=1e-9)
    turns = list(read_turns(tmp_path / "True"))
    begun_s = {name: min(t.due_s for t in turns if t.program_id == name) for name in {t.program_id for t in turns}}
    failed = {turn.program_id for turn in turns if turn.error}
    jcts_s = [t.finish_s - begun_s[t.program_id] for t in turns if t.is_last and t.program_id not in failed]
    expected = {"jct_mean_s": fmean(jcts_s), "programs_failed": len(failed), "programs_finished": len(jcts_s)}
    assert {name: both[0][name] for name in expected} == pytest.approx(expected)
    assert len(failed) > 0
    summary = summarize(tmp_path)
    assert summary.arms["other"].metrics["jct_mean_s"] == summary.arms["stock"].metrics["jct_mean_s"]
