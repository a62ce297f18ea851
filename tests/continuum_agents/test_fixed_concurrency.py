"""``--arrivals concurrency:N`` for agents: N at a time, the next when one ends. The agent is a scripted process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from continuum_agents.protocol import Start
from continuum_bench.agents.batch import Arrival, Batch, ProgramRecord, play
from continuum_bench.agents.run import _times, at_once
from continuum_bench.agents.tasks import Task
from continuum_bench.options.agent import AgentOptions

AGENT = """\
#!{python}
import os, sys, time
from continuum_agents.protocol import Done, Ready, to_line
sys.stdout.write(to_line(Ready("1"))); sys.stdout.flush()
if sys.stdin.readline():
    time.sleep(0.3)
    {end}
"""
DONE = 'sys.stdout.write(to_line(Done("Answered", "42", 1))); sys.stdout.flush()'


class Sink:
    def __init__(self) -> None:
        self.records: list[ProgramRecord] = []
        self.began_s = time.monotonic()  # noqa: TID251 - the test's clock

    def offset_s(self) -> float:
        return time.monotonic() - self.began_s  # noqa: TID251 - the test's clock

    def started(self, record: ProgramRecord) -> None: ...

    def ended(self, record: ProgramRecord) -> None:
        self.records.append(record)


def played(tmp_path: Path, spec: str, number: int, end: str = DONE) -> list[ProgramRecord]:
    agent = tmp_path / "agent"
    agent.write_text(AGENT.format(python=sys.executable, end=end))
    agent.chmod(0o755)
    (tmp_path / "logs").mkdir()
    options = AgentOptions(base_url="url", arrivals=spec)
    batch = Batch(agent, "m", {}, Start("", "", "", "", "", "", ""), tmp_path, at_once(options), 60.0, answers=True)
    tasks = [Task(f"t{n}", "x") for n in range(number)]
    times = _times(options, None, tasks)  # type: ignore[arg-type] - nothing is drawn
    sink = Sink()
    assert play(batch, [Arrival(t, t.instance_id, s) for t, s in zip(tasks, times, strict=True)], sink, print)
    return sorted(sink.records, key=lambda record: record.arrival_s)


def test_the_next_arrives_when_one_ends(tmp_path: Path) -> None:
    records = played(tmp_path, "concurrency:2:0.2", 5)
    assert [record.status for record in records] == ["Answered"] * 5
    ends = sorted(record.end_s or 0.0 for record in records)
    assert records[1].arrival_s == pytest.approx(records[0].arrival_s + 0.1)  # the first are spread over the ramp
    assert records[1].arrival_s < ends[0]
    for nth, record in enumerate(records[2:]):
        assert record.arrival_s > ends[nth]
    for record in records:
        running = [other for other in records if other.arrival_s <= record.arrival_s < (other.end_s or 0.0)]
        assert len(running) <= 2


def test_an_agent_that_dies_keeps_its_arrival(tmp_path: Path) -> None:
    (record,) = played(tmp_path, "concurrency:1", 1, "os._exit(3)")
    assert record.status == "AgentDied"
    assert record.arrival_s <= (record.start_s or 0.0) <= (record.end_s or 0.0)
