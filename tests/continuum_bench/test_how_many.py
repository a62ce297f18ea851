"""``replay --how-many``: the largest number of agents at a time within a service level."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from html import escape
from math import log2
from pathlib import Path

import pytest
from aiohttp import web
from bench_cli import bench, succeeded
from continuum_analysis.sweep.capacity import bracket_of
from continuum_bench.sweep.how_many import halvings, ladder, next_number
from continuum_traces.json_io import read_json
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_events
from continuum_traces.schema import Program, ToolCall, Turn
from ctrl_c import interrupted
from fake_server import FakeServer, good, hang_up


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


QUICK = (Turn(100, 4, tool_calls=(ToolCall("ls", 0.05),)), Turn(20, 2))
WITH_SUB_AGENT = [Program("root", QUICK), Program("root/sub", QUICK, parent_id="root", parent_turn=0)]


class Crowded(FakeServer):
    """Answers two requests at a time quickly, and any more after a second. After so many answers it is gone."""

    def __init__(self, answers: int = 10_000) -> None:
        super().__init__("vllm", handler=self._crowded)
        self.answers, self.running = answers, 0

    async def _crowded(self, request: web.BaseRequest, number: int) -> web.StreamResponse:
        if number > self.answers:
            return hang_up(request)
        self.running += 1
        try:
            await asyncio.sleep(1.0 if self.running > 2 else 0.02)
            return await good(request, number)
        finally:
            self.running -= 1

    def ramp(self, folder: Path) -> list[str]:
        write_programs(folder / "t.jsonl", [Program(f"p{n}", QUICK) for n in range(2)])
        words = ["replay", folder / "t.jsonl", "--how-many", "--slo", "ttft_p95=0.5", "--base-url", self.url]
        return [str(word) for word in (*words, "--retries", 0, "--out", folder / "out")]


def played(out: Path) -> dict[int, Path]:
    """The folders of the runs that a search has finished, by the number of agents at a time."""
    groups = read_json(out / "sweep.json")["groups"]
    runs = {group["axes"]["concurrency"]: out / group["folder"] / group["cells"][0]["name"] for group in groups}
    return {number: run for number, run in runs.items() if (run / "engine.json").exists()}


@pytest.mark.slow
def test_a_ramp_ends_at_the_first_number_that_breaks_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with Crowded() as server:
        code, rest = interrupted(server.ramp(tmp_path), "concurrency2-")
        assert (code, "stopped; 2 of " in rest) == (130, True), rest
        before = played(tmp_path / "out")
        assert set(before) == {1, 2}
        turns, asked = {n: (run / "turns.jsonl").read_bytes() for n, run in before.items()}, len(server.asked)
        done = bench(*server.ramp(tmp_path))
        assert done.exit_code == 0, done.output
        assert "Agents at a time within TTFT P95 <= 0.5 s: 2 to 3 under vllm" in done.output
        assert len(server.asked) - asked == 4 * 4 * 2  # turns of four programs for each of four at a time
    assert set(played(tmp_path / "out")) == {1, 2, 4}
    assert {number: (run / "turns.jsonl").read_bytes() for number, run in before.items()} == turns


@pytest.mark.slow
def test_a_server_that_dies_ends_a_ramp_with_what_is_known(tmp_path: Path) -> None:
    """Four programs of two turns are answered with one at a time, and a few turns with two."""
    with Crowded(answers=8 + 5) as server:
        done = bench(*server.ramp(tmp_path))
    assert done.exit_code == 1
    assert "within TTFT P95 <= 0.5 s: 1 or more under vllm" in done.output
    assert re.search(r"error: \S*concurrency2-\S*: errors: \d+ x connection", done.output), done.output
    assert set(played(tmp_path / "out")) == {1}
    assert bench(*server.ramp(tmp_path)).exit_code == 2  # nothing answers there any more
    assert set(played(tmp_path / "out")) == {1}


@pytest.mark.slow
def test_what_is_assumed_of_a_trace_is_said_once_for_all_runs(tmp_path: Path) -> None:
    rows = ("program_id,turn,prompt_tokens,output_tokens,tools", "p,1,100,5,ls", "p,2,200,5,")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    where = ["--policy", "vllm", "--jobs", 2, "--kv-blocks", 400, "--out", tmp_path / "out"]
    done = succeeded("replay", tmp_path / "t.csv", "--how-many", "--slo", "ttft_p95=0.001", *where)
    for kind in ("assumed: ", "warning: assumed: "):
        lines = [line for line in done.stderr.splitlines() if line.startswith(kind)]
        assert len(lines) == len(set(lines)) > 0, done.stderr
    assert not re.search("warning: t-concurrency.*assumed", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "level", "agents"),
    [
        ([Program("only", QUICK)], "ttft_p95=1000", "256 or more"),
        ([Program("only", QUICK)], "ttft_p95=0.001", "0"),
        (WITH_SUB_AGENT, "jct=1000s", "256 or more"),
        (WITH_SUB_AGENT, "ttft_p95=0.001", "0"),
    ],
)
def test_one_session_or_one_with_a_sub_agent_within_a_level_that_all_keep_or_none(
    programs: list[Program], level: str, agents: str, tmp_path: Path
) -> None:
    """If a trace has fewer programs than are to run at a time, its programs are played several times, each time with
    other token ids, so that no copy finds the cached prompt of another."""
    write_programs(tmp_path / "t.jsonl", programs)
    where = ["--policy", "vllm", "--jobs", 2, "--kv-blocks", 4000, "--out", tmp_path / "out"]
    done = succeeded("replay", tmp_path / "t.jsonl", "--how-many", "--slo", level, *where)
    assert f": {agents} under vllm (" in done.output
    arrivals = Counter(event.program_id.partition("#")[0] for event in read_events(played(tmp_path / "out")[8]))
    assert set(arrivals) == {program.program_id for program in programs}
