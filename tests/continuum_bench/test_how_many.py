"""``replay --how-many``: the largest number of agents at a time within a service level."""

from __future__ import annotations

import json
from html import escape
from math import log2
from pathlib import Path

import pytest
from bench_cli import bench
from continuum_analysis.sweep.capacity import bracket_of
from continuum_bench.sweep.how_many import halvings, ladder, next_number
from continuum_traces.json_io import read_json
from continuum_traces.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn


def searched(largest: int, numbers: list[int], halves: bool = True) -> tuple[dict[int, bool], list[int]]:
    """Return what is known of an engine that keeps a level up to ``largest``, and the numbers that were tried."""
    kept = dict[int, bool]()
    while (number := next_number(kept, numbers, halves)) is not None:
        assert len(kept) < 20
        kept[number] = number <= largest
    return kept, list(kept)


@pytest.mark.parametrize(
    ("largest", "text", "tried"),
    [
        (0, "0", [1, 2, 4, 8]),
        (1, "1", [1, 2, 4, 8]),
        (3, "3", [1, 2, 4, 8, 3]),
        (9, "9", [1, 2, 4, 8, 16, 12, 10, 9]),
        (17, "17", [1, 2, 4, 8, 16, 32, 24, 20, 18, 17]),
        (255, "248", [1, 2, 4, 8, 16, 32, 64, 128, 256, 192, 224, 240, 248]),
        (256, "256 or more", [1, 2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_numbers_that_are_tried(largest: int, text: str, tried: list[int]) -> None:
    kept, numbers = searched(largest, [1, 2, 4, 8])
    assert (bracket_of(kept).text.partition(" to ")[0], numbers) == (text, tried)


@pytest.mark.parametrize(("largest", "tried"), [(0, [1]), (1, [1, 2]), (5, [1, 2, 4, 8])])
def test_a_server_is_asked_for_more_up_to_the_first_number_that_breaks(largest: int, tried: list[int]) -> None:
    assert searched(largest, [1], halves=False)[1] == tried


@pytest.mark.parametrize(
    ("fitting", "numbers"),
    [
        (0.3, [1, 2]),
        (1.0, [1, 2]),
        (4.0, [1, 2, 3, 4, 6, 8]),
        (8.0, [1, 2, 4, 6, 8, 12, 16]),
        (10.6, [1, 2, 4, 6, 8, 12, 16]),
        (10.7, [1, 2, 4, 6, 8, 12, 16, 24, 32]),
        (5000.0, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_the_ladder_is_finest_where_the_pool_is_full(fitting: float, numbers: list[int]) -> None:
    assert ladder(fitting) == numbers
    assert halvings(numbers) == round(log2(numbers[-1] - numbers[-2]))


@pytest.mark.slow
def test_a_search_answers_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The KV cache has room for one turn, which takes some 4 s: the second program waits for the first."""
    turns = (Turn(1000, 400, tool_calls=(ToolCall("ls", 0.5),)), Turn(20, 20))
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", turns) for n in range(4)])
    arguments = ["replay", tmp_path / "t.jsonl", "--how-many", "--kv-blocks", 100, "--policy", "vllm"]
    arguments += ["--slo", "ttft_p95=2", "--first-token-s", 60, "--out", tmp_path / "out", "--jobs", 2]
    first = bench(*map(str, arguments))
    assert first.exit_code == 0, first.output
    answer = "Agents at a time within TTFT P95 <= 2 s: 1 under vllm (llama-3.1-8b on 1 x h100-80gb)."
    assert answer in first.output
    assert (tmp_path / "out/report.html").read_text().count(escape(answer)) == 1
    played = len(read_json(tmp_path / "out/sweep.json")["groups"])
    again = bench(*map(str, arguments))
    assert (again.exit_code, "0 to play" in again.output) == (0, True)
    assert len(read_json(tmp_path / "out/sweep.json")["groups"]) == played
    compared = bench("compare", str(tmp_path / "out"))
    assert answer in compared.output
    assert "1 or more" not in compared.output
    looser = bench("compare", str(tmp_path / "out"), "--slo", "ttft_p95=1000")
    assert "2 or more under vllm" in looser.output
    assert "within the level" in bench("compare", str(tmp_path / "out")).output
    table = bench("compare", str(tmp_path / "out"), "--format", "csv").output.splitlines()
    assert table[0].startswith("concurrency,policy,seeds,")
    assert [line.split(",")[:2] for line in table[1:]] == [["1", "vllm"], ["2", "vllm"]]
    assert (
        json.loads(bench("compare", str(tmp_path / "out"), "--json").output)["capacity"]["agents"]["vllm"]["agents"]
        == 1
    )
    assert bench("report", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out/report.html").read_text().count(escape(answer)) == 1
