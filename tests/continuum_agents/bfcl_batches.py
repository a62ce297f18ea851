"""Questions, a recorded web and replies for BFCL under test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_batches import SCENARIOS, calls, write_lines

BFCL = SCENARIOS / "bfcl"
PAGE = "https://lights.example/halden-reach"
"""Answers in a moment."""
NEVER = "https://slow.example/"
"""Answers after eleven days."""
HUGE = "https://huge.example/"
"""Does not fit any context."""
RIGHT = "{'answer': 'forty-two', 'context': 'It says so.'}"


def entry(number: int) -> str:
    return f"web_search_base_{number}"


def questions(folder: Path, numbers: Iterable[int]) -> Path:
    """Write BFCL's files of these questions. The right answer to each is forty-two."""
    data = folder / "questions"
    (data / "possible_answer").mkdir(parents=True, exist_ok=True)
    asked, answers = [], []
    for number in numbers:
        turn = [{"role": "user", "content": f"What is the answer to question {number}?"}]
        asked.append({"id": f"web_search_{number}", "question": [turn], "involved_classes": ["WebSearchAPI"]})
        answers.append({"id": f"web_search_{number}", "ground_truth": ["forty-two"], "source": [], "num_hops": 1})
    write_lines(data / "BFCL_v4_web_search.json", asked)
    write_lines(data / "possible_answer" / "BFCL_v4_web_search.json", answers)
    return data


def web(folder: Path) -> Path:
    """The scenarios' web, and pages that make trouble."""
    scenarios = [json.loads(line) for line in (BFCL / "web.jsonl").read_text().splitlines()]
    trouble = [
        {"url": NEVER, "text": "<p>At last.</p>", "seconds": 987_654.25},
        {"url": HUGE, "text": "<p>More and more.</p>" * 20_000, "seconds": 0.01},
    ]
    return write_lines(folder / "web.jsonl", scenarios + trouble)


def fetches(url: str = PAGE) -> dict[str, Any]:
    return calls("fetch_url_content", url=url)


def says(text: str = RIGHT) -> dict[str, Any]:
    return {"text": text}


def own_record(out: Path, instance_id: str) -> dict[str, Any]:
    """BFCL's result of one entry."""
    return dict(json.loads((out / instance_id / f"{instance_id}.traj.json").read_text()))


def tools_said(record: dict[str, Any]) -> list[str]:
    """What BFCL's tools gave the model, in order."""
    turn = next(part for part in record["inference_log"] if isinstance(part, dict))
    steps = (turn[name] for name in turn if name.startswith("step_"))
    return [said["content"] for step in steps for said in step if said["role"] == "tool"]
