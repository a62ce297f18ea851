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
from continuum_analysis.slo import read_slo, with_slo
from continuum_bench.live.http import StreamedAnswer
from continuum_traces.records.token_gaps import gaps_ms
from fake_server import hang_up, streaming
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import write_recorded
from small_replays import replayed


@given(st.lists(st.floats(0, 1e5), max_size=40).map(sorted))
def test_gaps_are_kept_to_three_digits(instants_s: list[float]) -> None:
    gaps = gaps_ms([(instant_s, 1) for instant_s in instants_s])
    kept = [float(gap) for gap, number in gaps.items() for _ in range(number)]
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


LOGPROBS = {"content": [{"token": "w", "logprob": -1.0}] * 3}
REFUSAL = {"refusal": LOGPROBS["content"]}
BOTH = {"reasoning": "b", "content": "c"}
CALL = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]}
EMPTY = {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("parts", "more", "gaps"),
    [
        (({"token_ids": [1]}, {"token_ids": [1, 2, 3]}, {"token_ids": [1]}), ({}, {}, {}), {"100": 3, "300": 1}),
        (({"logprobs": LOGPROBS}, {"logprobs": LOGPROBS}), ({}, {}), {"100": 3}),
        (({"logprobs": REFUSAL}, {"logprobs": {"content": None, **REFUSAL}}), ({}, {}), {"100": 3}),
        (({"logprobs": {"tokens": ["a"]}}, {"logprobs": {"tokens": ["b", "c"]}}), ({}, {}), {"150": 2}),
        (({"token_ids": [1]}, {"token_ids": [2, 3]}), ({"usage": {"completion_tokens": 0}},) * 2, {"150": 2}),
        (({"token_ids": [1]}, {"token_ids": [2, 3]}), ({"usage": None},) * 2, {"150": 2}),
        (({"token_ids": [1]}, {"token_ids": [2, 3], "finish_reason": "stop"}), ({}, {}), {"150": 2}),
        (({"token_ids": [1]}, {"delta": {"content": ""}, "token_ids": [2, 3]}), ({}, {}), {"150": 2}),
        (({"delta": {"reasoning": "a"}, "token_ids": [1]}, {"delta": BOTH, "token_ids": [2, 3]}), ({}, {}), {"150": 2}),
        (({"delta": CALL}, {"delta": CALL}), tuple({"usage": {"completion_tokens": n}} for n in (1, 3)), {"150": 2}),
        (({"delta": EMPTY}, {}, {}), tuple({"usage": {"completion_tokens": n}} for n in (1, 2, 5)), {"100": 3}),
        (({"token_ids": [1]}, {"index": 1, "token_ids": [1]}), ({}, {}), None),  # two choices
        (({}, {}), ({"timings": {"predicted_n": 1}}, {"timings": {"predicted_n": 5}}), None),  # llama.cpp's own
        (({}, {}, {}), tuple({"usage": {"completion_tokens": count}} for count in (1, 4, 5)), {"100": 3, "300": 1}),
        (({}, {}, {}, {}, {}), ({}, {}, {}, {}, {}), {"300": 4}),  # as many chunks as tokens
        (({}, {}, {}), ({}, {}, {}), None),
        (({}, {}, {}), ({}, {}, {"usage": {"completion_tokens": 5}}), None),
        (({"token_ids": [1, 2]}, {}), ({}, {}), None),
        (({},), ({},), {}),
        ((), (), {}),
    ],
)
def test_a_chunk_has_as_many_tokens_as_the_server_says(
    parts: tuple[Any, ...], more: tuple[Any, ...], gaps: dict[str, int] | None
) -> None:
    answer = StreamedAnswer(chunks=[])
    for number, (choice, beside) in enumerate(zip(parts, more, strict=True)):
        answer.take({"choices": [{"index": 0, "delta": {"content": "w"}, **choice}], **beside}, 0.3 * number)
    answer.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}, 2.0)
    answer.take({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}, 2.0)
    assert answer.gaps_ms() == gaps


@pytest.mark.parametrize("gaps", [None, {}])
def test_tokens_of_one_chunk_have_no_time_between_them(tmp_path: Path, gaps: dict[str, int] | None) -> None:
    """A turn whose tokens came at once keeps no limit on the time between tokens."""
    write_recorded(tmp_path / "r", "vllm", 0, [2.5, 5.5], token_gaps_ms=gaps)
    (run,) = load_runs(tmp_path / "r")
    assert (run.metrics.values["tpot_mean_s"] is None) == (gaps == {})
    (judged,) = with_slo([run], read_slo("tpot=100s"))
    assert judged.metrics.values["slo_requests_share"] == (0.0 if gaps == {} else 1.0)


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
        assert sum(turn.token_gaps_ms.values()) == turn.output_tokens - 1  # three of them in the last chunk
    (run,) = load_runs(done.out)
    assert run.metrics.values["itl_p99_s"] is not None
    assert "token_times" in (done.run / "manifest.json").read_text()
    (tmp_path / "plain").mkdir()
    assert {turn.token_gaps_ms for turn in replayed(tmp_path / "plain", one_by_one).turns} == {None}
