"""``--token-times``: the percentiles of ITL, from a server's chunks to the tables."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from continuum_analysis.compare.runs import load_runs
from continuum_traces.token_gaps import gaps_ms
from fake_server import hang_up, streaming
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import write_recorded
from small_replays import replayed


@given(st.lists(st.floats(0, 1e5), max_size=40).map(sorted))
def test_gaps_are_kept_to_three_digits(instants_s: list[float]) -> None:
    kept = [float(gap) for gap, number in gaps_ms(instants_s).items() for _ in range(number)]
    exact = [1e3 * (after - before) for before, after in pairwise(instants_s)]
    assert sorted(kept) == pytest.approx(sorted(exact), rel=0.0051)


def test_statistics_are_those_of_all_gaps_of_all_turns(tmp_path: Path) -> None:
    gaps = {"10": 7, "12.5": 2, "800": 1}
    write_recorded(tmp_path / "r", "vllm", 0, [2.5, 5.5], token_gaps_ms=gaps)
    (run,) = load_runs(tmp_path / "r")
    pooled = [0.01] * 14 + [0.0125] * 4 + [0.8] * 2
    for q in (50, 90, 95, 99):
        assert run.metrics.values[f"itl_p{q}_s"] == pytest.approx(np.percentile(pooled, q))
    assert run.metrics.values["itl_mean_s"] == pytest.approx(np.mean(pooled))


async def one_by_one(request: web.Request, number: int) -> Any:
    """Stream an answer in chunks of one token; the last chunk has three. The first answer breaks off before its end."""
    response = await streaming(request)
    count = (await request.json())["max_tokens"]
    for ids in [[token] for token in range(count - 3)] + [[1, 2, 3]]:
        chunk = {"choices": [{"text": "x" * len(ids), "token_ids": ids}]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await asyncio.sleep(0)
    if number == 1:
        return hang_up(request, response)
    await response.write(b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n')
    return response


def test_a_servers_chunks_are_timed_when_asked(tmp_path: Path) -> None:
    """A try that broke leaves no gap."""
    done = replayed(tmp_path, one_by_one, "--token-times")
    assert [turn.failed_tries for turn in done.turns] == [("stream",), (), ()]
    for turn in done.turns:
        assert sum(turn.token_gaps_ms.values()) == turn.output_tokens - 3  # the last three tokens are one chunk
    (run,) = load_runs(done.out)
    assert run.metrics.values["itl_p99_s"] is not None
    assert "token_times" in (done.run / "manifest.json").read_text()
    (tmp_path / "plain").mkdir()
    assert {turn.token_gaps_ms for turn in replayed(tmp_path / "plain", one_by_one).turns} == {None}
