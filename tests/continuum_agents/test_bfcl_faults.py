"""Ends of real BFCL programs: answers right and wrong, limits, pages that hang, restarts of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import Batch, events_of, finished, scripted, through_a_restart
from bfcl_batches import HUGE, NEVER, calls, entry, fetches, own_record, questions, says, tools_said, web, write_lines
from continuum_traces.run_dir import read_turns
from live_server import Live

pytestmark = pytest.mark.slow

SCRIPT: dict[int, list[dict[str, Any]]] = {
    0: [fetches(), says()],
    1: [fetches(NEVER), fetches(), says()],
    2: [fetches(), *(fetches(NEVER) for _ in range(30))],
    3: [calls("open_page", url=NEVER), calls("fetch_url_content", address=NEVER), says()],
    4: [fetches(), calls("fetch_url_content")],
    5: [fetches(), fetches(HUGE), says()],
    6: [fetches(), says("I could not find out.")],
    7: [fetches(), fetches(), fetches()],
    8: [{"text": "[fetch_url_content(url='https://lights.example/halden-reach', mode='truncate')]"}, says()],
}
"""What a model says to each question. The fourth calls with arguments that are no object."""
SCRIPT[4][1]["tool_calls"][0]["arguments"] = ["a list"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files: questions, web.jsonl."""
    folder = tmp_path_factory.mktemp("bfcl-faults")
    questions(folder, len(SCRIPT))
    web(folder)
    return folder


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Live]:
    script = {entry(number): replies for number, replies in SCRIPT.items()}
    with scripted(data, script, policy_options={"ttl_s": 2.0}, max_model_len=16_000) as found:
        yield found


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
        entry(0): ("Answered", True),
        entry(1): ("Answered", True),  # its page was given up at the tool's limit, and BFCL went on
        entry(2): ("TimeLimit", False),
        entry(3): ("Answered", True),
        entry(4): ("NotDecoded", False),
        entry(5): ("InferenceError", False),
        entry(6): ("Answered", False),
    }, said
    assert 3.0 <= programs[entry(1)]["tool_s"] < 20.0
    assert programs[entry(3)]["tools"] == ["open_page", "fetch_url_content"]
    what_bfcl_told_the_model(out)
    assert finished(server, entry(3), 3) == ["open_page", "fetch_url_content", None]
    (score,) = out.glob("score/*/agentic/*_score.json")
    head = json.loads(score.read_text().splitlines()[0])
    assert (head["correct_count"], head["total_count"]) == (3, 7)
    assert "3 of 7 pass their test" in said


def what_bfcl_told_the_model(out: Path) -> None:
    """In BFCL's own words."""
    given_up = tools_said(own_record(out, entry(1)))[0]
    assert "An error occurred while fetching" in given_up
    assert "time limit" in given_up
    unknown, misnamed = tools_said(own_record(out, entry(3)))
    assert unknown == "Error during execution: name 'open_page' is not defined"
    assert "unexpected keyword argument 'address'" in misnamed
    assert own_record(out, entry(5))["result"].startswith("Error during inference: Error code: 400")


def test_the_call_at_the_step_limit_is_known_to_be_the_last(
    server: Live, tmp_path: Path, ask: Callable[..., Batch]
) -> None:
    out = tmp_path / "run"
    batch = ask(server.server.url, out, "7:8", "--step-limit", "2")
    batch.ended()
    done = batch.programs()[entry(7)]
    assert (done["status"], done["passed"], done["turns"]) == ("StepLimit", False, 2)
    assert [turn.is_last for turn in read_turns(out)] == [False, True]
    assert len(finished(server, entry(7), 2)) == 2
    assert [event.turn for event in events_of(server, entry(7), 2) if event.event == "pin"] == [0]


def test_calls_in_text(server: Live, tmp_path: Path, ask: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    batch = ask(server.server.url, out, "8:9", "--prompting")
    batch.ended()
    done = batch.programs()[entry(8)]
    assert (done["status"], done["passed"], done["tools"]) == ("Answered", True, ["fetch_url_content"])
    assert "Ida Corran" in tools_said(own_record(out, entry(8)))[0]
    assert finished(server, entry(8), 2) == ["fetch_url_content", None]


def test_a_program_outlives_its_server(data: Path, tmp_path: Path, ask: Callable[..., Batch]) -> None:
    """The client tries again until the new server answers; the id stays, and so does the record."""
    pages = [*map(json.loads, (data / "web.jsonl").read_text().splitlines())]
    patient = {"url": "https://patient.example/", "text": "<p>Yes.</p>", "seconds": 4.0}
    file, says_so = write_lines(tmp_path / "web.jsonl", [*pages, patient]), [fetches(), fetches(patient["url"]), says()]
    batch = through_a_restart(
        tmp_path, lambda url: ask(url, tmp_path / "run", "0:1", "--web", str(file)), entry(0), says_so
    )
    assert batch.programs()[entry(0)]["passed"] is True
