"""The directory of a batch of real agents: its records and predictions. A batch can be resumed."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from continuum_agents.protocol import ANSWERS, Start
from continuum_traces.appender import SharedLines
from continuum_traces.json_io import read_json, write_json
from continuum_traces.records import read_turns
from continuum_traces.records.run_dir import PROGRAMS, TURNS, begin
from continuum_traces.schema import Manifest

from continuum_bench.lock import locked
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import print_json, print_notice
from continuum_bench.virtual.pool import Report
from continuum_client.recorder import Recorder
from continuum_client.reply import Content

PREDICTIONS = "preds.json"
MAY_GROW = (
    *("seed", "workload.file", "workload.sha256", "workload.programs", "workload.slice", "workload.filter"),
    *("workload.shuffle", "workload.jps", "workload.arrivals", "engine_options.workers", "engine_options.time_limit_s"),
)
"""Entries of the manifest in which the parts of a batch may differ: which programs run, when, and how many at once."""
TIME_LIMIT = "TimeLimit"
DIED = "AgentDied"
ERROR = "Error"
INTERRUPTED = "Interrupted"
SERVER_FAILED = "ServerFailed"
"""The server failed the last call of the program, however its agent ended then."""
UNFINISHED = (DIED, ERROR, INTERRUPTED, SERVER_FAILED)
"""Statuses of programs that did not end by themselves. They have no prediction and are run again on resume."""


NOT_WRITTEN = ("submission", "server_failure")


@dataclass(slots=True)
class ProgramRecord:
    """One line of programs.jsonl. Times are seconds since the directory was created, as in turns.jsonl."""

    instance_id: str
    program_id: str
    arrival_s: float
    start_s: float | None = None
    """When the agent was given its task; later than the arrival if all workers were busy."""
    end_s: float | None = None
    status: str = ERROR
    """The framework's status (Submitted, LimitsExceeded, ...), or TimeLimit, AgentDied, Error, Interrupted,
    ServerFailed."""
    turns: int = 0
    tools: tuple[str, ...] = ()
    tool_s: float = 0.0
    """Seconds of all tools together."""
    passed: bool | None = None
    """Result of the task's test or of the framework's scorer; None: no test, or the program did not finish."""
    error: str | None = None
    submission: str = field(default="", repr=False)
    server_failure: str | None = field(default=None, repr=False)
    """How the server has failed a call; None: it has answered a later one. Not written."""

    def blame_server(self) -> None:
        """If the server failed the last call, that is why the program ended, not its agent."""
        if self.server_failure is not None:
            self.status, self.error, self.passed = SERVER_FAILED, self.server_failure, None

    @property
    def finished(self) -> bool:
        return self.status not in UNFINISHED


class Results(ExitStack):
    """The directory of a batch: programs.jsonl, preds.json or answers.json, and the records of the agents.

    Use it as a context manager. All agents must have ended when its block ends, also after an error.

    Raises:
        RunDirError: the directory holds another run, or another batch is running in it.
    """

    def __init__(self, out: Path, manifest: Manifest, start: Start, source: str, answers: bool = False) -> None:
        super().__init__()
        self.out = out
        self.model = start.model
        self.records: list[ProgramRecord] = []
        self.display = RunsDisplay({}, 0, quiet=False, what="programs")
        self.to_run = 0
        """Number of programs that this command runs. A batch that goes on runs fewer than all."""
        begin(out, manifest, MAY_GROW)
        self.enter_context(locked(out))
        for name in ("logs",) if answers else ("logs", "workspaces"):
            (out / name).mkdir(exist_ok=True)
        self._recorder = Recorder(out, cast(Content, start.content), source)
        self._programs = SharedLines(out / PROGRAMS)
        self.callback(self._programs.close)
        self._answers = answers
        self._file = out / (ANSWERS if answers else PREDICTIONS)
        self.predictions: dict[str, Any] = read_json(self._file) if self._file.exists() else {}
        self._ids = {turn.program_id for turn in read_turns(out)} if (out / TURNS).exists() else set()

    def new_program_id(self, instance_id: str) -> str:
        """Return the instance's id, with a number if an earlier, unfinished program had the same id."""
        number, name = 1, instance_id
        while name in self._ids:
            number += 1
            name = f"{instance_id}#{number}"
        self._ids.add(name)
        return name

    def offset_s(self) -> float:
        return self._recorder.offset_s(time.monotonic())  # noqa: TID251 - the recorder's own clock

    def started(self, record: ProgramRecord) -> None:
        self.display.update(Report(record.program_id))

    def ended(self, record: ProgramRecord) -> None:
        """Record a program that ended, and its prediction if the program finished."""
        self.records.append(record)
        line = {name: value for name, value in asdict(record).items() if name not in NOT_WRITTEN}
        self._programs.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if record.finished:
            self.predictions[record.instance_id] = self._prediction(record)
            write_json(self._file, self.predictions)
        turns, seconds = f"{record.turns} turns", (record.end_s or 0.0) - record.arrival_s
        why = f" ({record.error})" if record.error else ""
        tested = "" if record.passed is None else ", passes" if record.passed else ", fails its test"
        summary = f"{record.status}{tested}, {turns}, {seconds:.1f} s{why}"
        self.display.update(Report(record.program_id, state="done"), summary)

    def _prediction(self, record: ProgramRecord) -> dict[str, Any]:
        """Return a prediction in SWE-bench's format, or an answer and whether it is right."""
        if self._answers:
            return {"status": record.status, "answer": record.submission, "passed": record.passed}
        return {
            "model_name_or_path": self.model,
            "instance_id": record.instance_id,
            "model_patch": record.submission,
        }


def show_results(results: Results, as_json: bool) -> None:
    """Print a summary of the batch."""
    records = [record for record in results.records if record.finished]
    times = [(record.end_s or 0.0) - record.arrival_s for record in records]
    tested = [record for record in records if record.passed is not None]
    summary = {
        "out": str(results.out),
        "programs": len(results.records),
        "status": dict(Counter(record.status for record in results.records)),
        "turns": sum(record.turns for record in results.records),
        "mean_s": round(float(np.mean(times)), 3) if times else None,
        "tested": len(tested),
        "passed": sum(bool(record.passed) for record in tested),
    }
    if as_json:
        print_json(summary)
        return
    ends = {**cast(dict[str, int], summary["status"]), "not run": results.to_run - len(results.records)}
    counts = ", ".join(f"{count} {status}" for status, count in ends.items() if count)
    mean = f"; {summary['mean_s']:g} s from arrival to end on average" if times else ""
    passed = f"; {summary['passed']} of {summary['tested']} pass their test" if tested else ""
    print_notice(f"{summary['programs']} programs: {counts or 'all finished before'}{mean}{passed}")
