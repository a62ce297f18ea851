"""``replay --how-many``: the largest number of programs at a time without loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_cli import bench
from continuum_bench.sweep.how_many import HowMany
from continuum_traces.json_io import read_json
from continuum_traces.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn


def searched(largest: int) -> tuple[HowMany, list[int]]:
    """Return the search of an engine that has a loss above ``largest``, and the numbers that it tried."""
    search, tried = HowMany(), list[int]()
    while not search.ended:
        assert len(tried) < 20
        tried.append(search.number)
        search.tell(100.0 if search.number <= largest else 50.0, 1.0)
    return search, tried


@pytest.mark.parametrize(
    ("largest", "low", "tried"),
    [
        (1, 1, [1, 2]),
        (9, 9, [1, 2, 4, 8, 16, 12, 10, 9]),
        (16, 16, [1, 2, 4, 8, 16, 32, 24, 20, 18, 17]),
        (255, 248, [1, 2, 4, 8, 16, 32, 64, 128, 256, 192, 224, 240, 248]),
        (256, 256, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_numbers_that_are_tried(largest: int, low: int, tried: list[int]) -> None:
    search, numbers = searched(largest)
    assert (search.low, numbers) == (low, tried)
    assert str(search) == ("256 or more" if largest == 256 else str(low))


def test_not_even_one() -> None:
    search = HowMany()
    search.tell(100.0, 5.01)
    assert (search.low, search.ended) == (0, True)


@pytest.mark.parametrize(
    ("work_per_s", "first_token_s", "without_loss"),
    [(95.0, 5.0, True), (94.99, 5.0, False), (200.0, 5.01, False)],
)
def test_what_a_loss_is(work_per_s: float, first_token_s: float, without_loss: bool) -> None:
    search = HowMany()
    search.tell(100.0, 1.0)
    search.tell(work_per_s, first_token_s)
    assert (search.low == 2) == without_loss


@pytest.mark.slow
def test_a_search_says_how_many_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """The KV cache has room for one turn, which takes some 4 s."""
    turns = (Turn(1000, 400, tool_calls=(ToolCall("ls", 0.5),)), Turn(20, 20))
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", turns) for n in range(4)])
    arguments = ["replay", tmp_path / "t.jsonl", "--how-many", "--kv-blocks", 100, "--policy", "vllm"]
    arguments += ["--first-token-s", 60, "--out", tmp_path / "out", "--jobs", 2]
    first = bench(*map(str, arguments))
    assert first.exit_code == 0, first.output
    assert "Your 4 programs, with llama-3.1-8b on 1 x h100-80gb: " in first.output
    assert (tmp_path / "out/report.html").read_text().count("at a time without loss under vllm")
    played = len(read_json(tmp_path / "out/sweep.json")["groups"])
    again = bench(*map(str, arguments))
    assert (again.exit_code, "0 to play" in again.output) == (0, True)
    assert len(read_json(tmp_path / "out/sweep.json")["groups"]) == played
