"""Metrics of a made-up live run, with retries and a late load generator, against pandas on its raw lines."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from continuum_analysis.compare.summary import summarize
from continuum_analysis.metrics import analyze_run
from continuum_analysis.records.timeline import AnalysisError
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord

E = SchedulerEvent
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
            events += [
                E(arrive_s + OFFSET_S, "arrive", name, turn, prompt_tokens=100, **ids),
                E(start_s + OFFSET_S, "start", name, turn, prompt_tokens=100, hit_tokens=16, **ids),
                E(finish_s + OFFSET_S, "finish", name, turn, output_tokens=7, status="stop", **ids),
            ]
            instants = (due_s, sent_s, start_s + 0.1, finish_s + 0.05)
            records.append(TurnRecord(name, turn, *instants, 100, 7, gap_s=None if is_last else 2.0, **facts))
            due_s = finish_s + 0.05 + 2.0
    return sorted(events, key=lambda event: event.t), records


def recomputed(folder: Path) -> dict[str, float]:
    lines = [json.loads(line) for line in (folder / TURNS).read_text().splitlines()]
    turns = pd.DataFrame([line for line in lines if "program_id" in line])
    by_program = turns.groupby("program_id")
    failed = turns[turns.error.notna()].program_id if "error" in turns else []
    jct = (by_program.finish_s.max() - by_program.due_s.min()).drop(failed)
    good = turns[~turns.program_id.isin(failed)]
    wall = turns.finish_s.max() - turns.due_s.min()
    ttft, late = good.first_token_s - good.due_s, turns.sent_s - turns.due_s
    return {
        "jct_mean_s": jct.mean(),
        "jct_min_s": jct.min(),
        "jct_max_s": jct.max(),
        "programs": len(by_program),
        "programs_failed": len(failed),
        "programs_finished": len(jct),
        "wall_s": wall,
        "throughput_jobs_per_s": len(jct) / wall,
        "throughput_steps_per_min": 60 * len(good) / wall,
        "ttft_mean_s": ttft.mean(),
        "ttft_p99_s": np.percentile(ttft, 99),
        "send_lateness_p99_s": np.percentile(late, 99),
        "tries_failed": turns.failed_tries.dropna().map(len).sum(),
    }


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
    with_records, alone = live_run(tmp_path / "a", seed), live_run(tmp_path / "b", seed, events=False)
    expected = recomputed(alone)
    assert expected["programs_failed"] > 0
    assert expected["tries_failed"] > 20
    both = [analyze_run(folder).values for folder in (with_records, alone)]
    for name, value in expected.items():
        assert [values[name] for values in both] == pytest.approx([value, value]), name
    for name in (name for name in both[0] if name.startswith(THE_CLIENTS)):
        assert both[0][name] == both[1][name], name
    summary = summarize(tmp_path)
    assert summary.arms["other"].metrics["jct_mean_s"] == summary.arms["stock"].metrics["jct_mean_s"]


def test_clocks_are_not_mixed(tmp_path: Path) -> None:
    live_run(tmp_path / "a", events=False)
    live_run(tmp_path / "b", turns=False)
    with pytest.raises(AnalysisError, match=r"the times of one are the client's, of the other the scheduler's; only"):
        summarize(tmp_path)
