"""The real bfcl-eval, its loop, tools and scorer, against a real vLLM server; GPU emulated, answers scripted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_batches import (
    Batch,
    breaking_off,
    calls,
    environment,
    events_of,
    finished,
    script_of,
    scripted,
    slow_prefill,
    tried_again,
)
from agent_checks import all_is_well
from bench_cli import succeeded
from bfcl_batches import BFCL, HUGE, NEVER, entry, fetches, own_record, questions, says, tools_said, web
from continuum_agents.environments import find_framework, python_of
from continuum_traces.importers.registry import read_any
from continuum_traces.records import read_turns
from continuum_traces.records.run_dir import read_manifest
from live_server import Live

NAMES = {entry(number) for number in range(3)}

pytestmark = pytest.mark.slow


SCRIPT: dict[int, list[dict[str, Any]]] = {
    100: [fetches(), says()],
    101: [fetches(NEVER), fetches(), says()],
    102: [fetches(), *(fetches(NEVER) for _ in range(30))],
    103: [calls("open_page", url=NEVER), calls("fetch_url_content", address=NEVER), says()],
    104: [fetches(), calls("fetch_url_content")],
    105: [fetches(), fetches(HUGE), says()],
    106: [fetches(), says("I could not find out.")],
    107: [fetches(), fetches(), fetches()],
    108: [{"text": "[fetch_url_content(url='https://lights.example/halden-reach', mode='truncate')]"}, says()],
}
"""What a model says to each question. The fourth calls with arguments that are no object."""
SCRIPT[104][1]["tool_calls"][0]["arguments"] = ["a list"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files: questions, web.jsonl."""
    folder = tmp_path_factory.mktemp("bfcl-faults")
    questions(folder, SCRIPT)
    web(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The replies of the scenarios, of ``SCRIPT``, and some for BFCL's own entries."""
    folder = tmp_path_factory.mktemp("bfcl")
    search = calls("search_engine_query", keywords="kestrel clock built town")
    script = script_of(BFCL / "replies.jsonl") | {entry(number): replies for number, replies in SCRIPT.items()}
    script["web_search_no_snippet_5"] = [search, says("{'answer': 'I do not know'}")]
    script["web_search_base_5"] = [search, says(f"{{'answer': '{bfcl_s_own_answer(5)}'}}")]
    with scripted(folder, script, **slow_prefill(folder)) as found:
        yield found


def bfcl_s_own_answer(number: int) -> str:
    """From the installed package: no data of BFCL's is in this repository."""
    environment("bfcl")
    (data,) = python_of(find_framework("bfcl")).parents[1].glob("lib/python*/site-packages/bfcl_eval/data")
    lines = (data / "possible_answer" / "BFCL_v4_web_search.json").read_text(encoding="utf-8").splitlines()
    return str(json.loads(lines[number])["ground_truth"][0])


def test_three_programs_at_once_and_again(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    options = ("--web", str(BFCL / "web.jsonl"), "--workers", "3", "--time-limit", "120")
    batch = start(BFCL, server.server.url, out, *options, framework="bfcl")
    programs = all_is_well(batch, server, "Answered", NAMES, all_pins_are_hit=False)
    assert programs[entry(1)]["tools"] == ["search_engine_query"] * 2 + ["fetch_url_content"] * 2
    every_tool_is_followed_by_a_hit(server, out)
    tools_took_what_was_recorded(out)
    results_are_bfcl_s(out)
    assert read_manifest(out).workload.more["web"]["kind"] == "recorded"
    nothing_is_left_to_do(start(BFCL, server.server.url, out, *options, framework="bfcl"))


def every_tool_is_followed_by_a_hit(server: Live, out: Path) -> None:
    """Every turn with a tool is held, and the next one finds its KV; a release ends the hold of an answer."""
    for program in read_any(out / "trace.jsonl"):
        events = events_of(server, program.program_id, len(program.turns))
        ends = [event.reason for event in events if event.event == "unpin"]
        hits = ["hit"] * (len(program.turns) - 1)
        assert ends in (hits, [*hits, "last"])
        assert all(event.hit_tokens for event in events if event.event == "start" and event.turn > 0)


def tools_took_what_was_recorded(out: Path) -> None:
    """Their recorded times were slept, within the gap between two turns."""
    (program,) = (program for program in read_any(out / "trace.jsonl") if program.program_id == entry(1))
    durations = [call.duration_s or 0.0 for turn in program.turns for call in turn.tool_calls]
    recorded = [0.38, 0.44, 0.12, 0.9]
    assert all(recorded_s <= took_s for recorded_s, took_s in zip(recorded, durations, strict=True))
    mine = [turn for turn in read_turns(out) if turn.program_id == entry(1)]
    for turn, (before, after) in zip(program.turns, pairwise(mine), strict=False):
        assert sum(call.duration_s or 0.0 for call in turn.tool_calls) <= after.sent_s - (before.finish_s or 0.0) + 1e-3
    first, second = program.turns[0].tool_calls
    assert second.start_s >= first.start_s + (
        first.duration_s or 0.0
    )  # BFCL runs calls of one turn one after the other


def results_are_bfcl_s(out: Path) -> None:
    """Files where BFCL has them, with its fields; its evaluator found all three right."""
    (result,) = out.glob("result/*/agentic/BFCL_v4_web_search_base_result.json")
    entries = [json.loads(line) for line in result.read_text().splitlines()]
    assert [found["id"] for found in entries] == sorted(NAMES)
    turns = list(read_turns(out))
    for found in entries:
        mine = [turn for turn in turns if turn.program_id == found["id"]]
        assert found["input_token_count"] == [[turn.prompt_tokens for turn in mine]]
        assert found["output_token_count"] == [[turn.output_tokens for turn in mine]]
        assert len(found["latency"][0]) == len(mine)
        assert found == own_record(out, found["id"])
    (score,) = out.glob("score/*/agentic/BFCL_v4_web_search_base_score.json")
    assert json.loads(score.read_text().splitlines()[0]) == {"accuracy": 1.0, "correct_count": 3, "total_count": 3}
    said = tools_said(own_record(out, entry(1)))
    assert "404 Client Error: Not Found for url: https://valley.example/railways" in said[2]
    assert "_1851_" in said[3]  # BFCL's Markdown of the recorded page


def nothing_is_left_to_do(batch: Batch) -> None:
    said = batch.ended()
    assert "0 programs" in said
    assert "3 finished before" in said
    assert "3 of 3 right" in said
    shown = succeeded("analyze --json", batch.out)
    assert json.loads(shown.stdout)[str(batch.out)]["passed"] == dict.fromkeys(NAMES, True)


def test_bfcl_s_own_entries_with_and_without_snippets(
    server: Live, tmp_path: Path, start: Callable[..., Batch]
) -> None:
    out = tmp_path / "run"
    options = ("--category", "web_search", "--slice", "5:6", "--web", str(BFCL / "web.jsonl"))
    batch = start(None, server.server.url, out, *options, framework="bfcl")
    said = batch.ended()
    verdicts = {name: done["passed"] for name, done in batch.programs().items()}
    assert verdicts == {"web_search_base_5": True, "web_search_no_snippet_5": False}
    assert "web_search_base: 1 of 1 right" in said
    assert "web_search_no_snippet: 0 of 1 right" in said
    assert "A bird strikes the hours." in tools_said(own_record(out, "web_search_base_5"))[0]
    assert "A bird strikes the hours." not in tools_said(own_record(out, "web_search_no_snippet_5"))[0]
    bfcl_evaluate_takes_them(out)


def bfcl_evaluate_takes_them(out: Path) -> None:
    """``bfcl evaluate --partial-eval`` is this function; it wants the model in its table."""
    (model,) = (folder.name for folder in (out / "result").iterdir())
    code = f"""
from continuum_agents.bfcl_benchmark import MODELS, Handler, eval_runner
from types import SimpleNamespace
facts = dict(model_handler=Handler, model_name="m", display_name="m", url="", org="", license="", is_fc_model=True)
facts.update(input_price=None, output_price=None)
MODELS.MODEL_CONFIG_MAPPING[{model!r}] = SimpleNamespace(**facts)
eval_runner.main([{model!r}], ["web_search"], {str(out / "result")!r}, {str(out / "evaluated")!r}, partial_eval=True)
"""
    framework = find_framework("bfcl")
    (out / "evaluated").mkdir()
    subprocess.run(
        [str(python_of(framework)), "-I", "-c", code], check=True, env={**os.environ, **framework.variables()}
    )
    header, row = (out / "evaluated" / "data_agentic.csv").read_text().splitlines()
    table = dict(zip(header.split(","), row.split(","), strict=True))
    assert table["Web Search Base"] == "100.00%"
    assert table["Web Search No Snippet"] == "0.00%"


def test_bfcl_s_tools_see_the_recorded_web_as_the_live_one(tmp_path: Path) -> None:
    """A web on this machine: seen live and recorded, then seen in the recording. SerpAPI's key is in neither."""
    framework = find_framework("bfcl")
    script, file = Path(__file__).with_name("web_in_bfcl.py"), tmp_path / "web.jsonl"
    variables = {**os.environ, **framework.variables(), "SERPAPI_API_KEY": "a-secret"}
    command = [str(python_of(framework)), "-I", str(script), str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["live"]) == 9
    assert seen["live"] == seen["recorded"]
    assert "a-secret" not in done.stdout + file.read_text()


# ------------------------------------------------------------------------------------------ ends


@pytest.fixture
def ask(data: Path, start: Callable[..., Batch]) -> Callable[..., Batch]:
    """Starts a batch of the questions from one number to another."""

    def started(url: str, out: Path, part: str, *options: str) -> Batch:
        given = ("--slice", part, "--web", str(data / "web.jsonl"), *options)
        return start(data / "questions", url, out, *given, framework="bfcl")

    return started


def test_one_program_s_fault_is_its_own(server: Live, tmp_path: Path, ask: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    batch = ask(server.server.url, out, "0:7", "--workers", "4", "--tool-limit", "3", "--time-limit", "20")
    said = batch.ended()
    programs = batch.programs()
    assert batch.ends() == {
        entry(100): ("Answered", True),
        entry(101): ("Answered", True),  # its page was given up at the tool's limit, and BFCL went on
        entry(102): ("TimeLimit", False),
        entry(103): ("Answered", True),
        entry(104): ("NotDecoded", False),
        entry(105): ("InferenceError", False),
        entry(106): ("Answered", False),
    }, said
    assert 3.0 <= programs[entry(101)]["tool_s"] < 20.0
    assert programs[entry(103)]["tools"] == ["open_page", "fetch_url_content"]
    what_bfcl_told_the_model(out)
    assert finished(server, entry(103), 3) == ["open_page", "fetch_url_content", None]
    (score,) = out.glob("score/*/agentic/*_score.json")
    head = json.loads(score.read_text().splitlines()[0])
    assert (head["correct_count"], head["total_count"]) == (3, 7)
    assert "3 of 7 pass their test" in said


def what_bfcl_told_the_model(out: Path) -> None:
    """In BFCL's own words."""
    given_up = tools_said(own_record(out, entry(101)))[0]
    assert "An error occurred while fetching" in given_up
    assert "time limit" in given_up
    unknown, misnamed = tools_said(own_record(out, entry(103)))
    assert unknown == "Error during execution: name 'open_page' is not defined"
    assert "unexpected keyword argument 'address'" in misnamed
    assert own_record(out, entry(105))["result"].startswith("Error during inference: Error code: 400")


def test_the_call_at_the_step_limit_is_known_to_be_the_last(
    server: Live, tmp_path: Path, ask: Callable[..., Batch]
) -> None:
    out = tmp_path / "run"
    batch = ask(server.server.url, out, "7:8", "--step-limit", "2")
    batch.ended()
    done = batch.programs()[entry(107)]
    assert (done["status"], done["passed"], done["turns"]) == ("StepLimit", False, 2)
    assert [turn.is_last for turn in read_turns(out)] == [False, True]
    assert len(finished(server, entry(107), 2)) == 2
    assert [event.turn for event in events_of(server, entry(107), 2) if event.event == "pin"] == [0]


def test_calls_in_text(server: Live, tmp_path: Path, ask: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    batch = ask(server.server.url, out, "8:9", "--prompting")
    batch.ended()
    done = batch.programs()[entry(108)]
    assert (done["status"], done["passed"], done["tools"]) == ("Answered", True, ["fetch_url_content"])
    assert "Ida Corran" in tools_said(own_record(out, entry(108)))[0]
    assert finished(server, entry(108), 2) == ["fetch_url_content", None]


def test_a_call_that_fails_is_tried_again_by_the_same_program(tmp_path: Path, ask: Callable[..., Batch]) -> None:
    with breaking_off([fetches(), fetches(), says()]) as server:
        batch = ask(server.root, tmp_path / "run", "0:1")
        tried_again(server, batch, entry(100))
    assert batch.programs()[entry(100)]["passed"] is True
