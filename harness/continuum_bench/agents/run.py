"""``continuum-bench agent FRAMEWORK``: run a batch of real agents against a server. A batch can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from continuum_agents.environments import (
    COMMAND,
    FRAMEWORKS,
    AgentEnvironmentError,
    Framework,
    NoPython,
    find_framework,
    python_of,
    set_up,
)
from continuum_agents.protocol import CHECK, Start, to_line
from continuum_traces.names import which
from continuum_traces.run_dir import (
    MANIFEST,
    PROGRAMS,
    TURNS,
    read_json,
    read_manifest,
    read_turns,
    write_json,
    write_manifest,
)
from continuum_traces.schema import Manifest

from continuum_bench.agents.batch import Arrival, Batch, ProgramRecord, play
from continuum_bench.agents.tasks import Task, read_tasks, write_fixes
from continuum_bench.errors import BenchError
from continuum_bench.invocation import command_line, default_out, utc_now
from continuum_bench.live.endpoint import Endpoint, probe_server
from continuum_bench.options.agent import AgentOptions, OpenHandsOptions
from continuum_bench.options.run import uses_rate
from continuum_bench.show import print_notice
from continuum_bench.workload.arrivals import arrival_times, lanes_of, pace
from continuum_client.appender import Presence, SharedLines
from continuum_client.dialects import DIALECTS
from continuum_client.recorder import Recorder
from continuum_client.recover import add_missing_turns
from continuum_client.reply import Content

PREDICTIONS = "preds.json"
ANSWERS = "answers.json"
LOCK = "batch.lock"
WORKERS = 4
"""Number of agent processes at the same time if the user gives none."""


def at_once(options: AgentOptions) -> int:
    """Return the number of agent processes at the same time."""
    lanes = lanes_of(options.arrivals)
    return lanes.number if lanes is not None else options.workers or WORKERS


def setup_environments(names: Sequence[str], anew: bool) -> int:
    """Create the environments of these frameworks; by default, of all whose Python version this machine has."""
    try:
        for framework in [find_framework(name) for name in names or FRAMEWORKS]:
            try:
                set_up(framework, print_notice, anew)
            except NoPython as error:
                if names:
                    raise
                print_notice(f"left out: {error}")
    except AgentEnvironmentError as error:
        raise BenchError(str(error)) from error
    return 0


@dataclass(frozen=True, slots=True)
class Work:
    """The tasks of a batch, and how its results are concluded."""

    tasks: list[Task]
    answers: bool = False
    """Programs answer a question; otherwise they change code in a folder."""
    scored: bool = False
    """Programs without a test have a verdict too, so a program that is stopped has failed."""
    conclude: Callable[[Results], None] | None = None
    """Called when everything is recorded, also after Ctrl-C."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the workload for the manifest."""
    config: tuple[str, ...] = ()
    """The framework's configuration, if the harness writes it instead of the user."""


def run_openhands(options: OpenHandsOptions) -> int:
    """Play tasks on code. Returns the exit code, as ``run_batch``."""
    tasks = read_tasks(options.tasks, options.repos)

    def conclude(done: Results) -> None:
        write_fixes(done.out, tasks, done.predictions)

    return run_batch(options, options.tasks, lambda: Work(tasks, conclude=conclude))


def run_batch(options: AgentOptions, tasks: Path, find_work: Callable[[], Work]) -> int:
    """Play and record a batch. Returns the exit code: 0, 1 if programs failed, 130 after Ctrl-C.

    Args:
        options: the user's options.
        tasks: file that the tasks come from, for the manifest.
        find_work: reads the tasks; called after the options were checked.
    """
    environment = environment_of(options.framework)
    _check(options)
    work = find_work()
    endpoint = probe_server(options.base_url, os.environ.get("OPENAI_API_KEY") or None)
    start = _start(options, endpoint, work.config)
    if options.config:
        asked = f"-c {' -c '.join(options.config)}"
        environment.run(environment.framework.runner, CHECK, asked=asked, stdin=to_line(start))
    out = (options.out or default_out(options.framework)).absolute()
    manifest = _manifest(options, tasks, environment.framework, endpoint, start, work)
    with Results(out, manifest, start, environment.framework.distribution, work.answers) as results:
        arrivals = _arrivals(options, work.tasks, results)
        finished = len(work.tasks) - len(arrivals)
        again = f", {finished} finished before" if finished else ""
        rate = pace(options.arrivals, options.jps)
        print_notice(f"{len(arrivals)} programs {rate} against {endpoint.base_url}{again}, into {out}")
        complete, results.to_run = True, len(arrivals)
        if arrivals:
            batch = Batch(
                python=environment.python,
                module=environment.framework.runner,
                environment=environment.framework.variables(),
                start=start,
                out=out,
                workers=at_once(options),
                time_limit_s=options.time_limit_s,
                answers=work.answers,
                scored=work.scored or work.answers,
            )
            complete = play(batch, arrivals, results, print_notice)
        if work.conclude is not None:
            work.conclude(results)
    _show(results, options.json_output)
    if not complete:
        return 130
    return 0 if all(record.finished for record in results.records) else 1


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of an agent framework."""

    framework: Framework
    python: Path

    def run(self, module: str, *arguments: str, asked: str, stdin: str = "") -> str:
        """Run a module in this environment, and return its stdout.

        Args:
            module: name of the module.
            arguments: its command-line arguments.
            asked: the user's option that needs the module; the beginning of the error message.
            stdin: its standard input.

        Raises:
            BenchError: the module failed; the message ends with the last line of its stderr.
        """
        done = subprocess.run(
            [str(self.python), "-I", "-m", module, *arguments],
            capture_output=True,
            text=True,
            input=stdin,
            env={**os.environ, **self.framework.variables()},
        )
        if done.returncode:
            raise BenchError(f"{asked}: {(done.stderr.strip().splitlines() or ['it printed no error'])[-1]}")
        return done.stdout


def environment_of(name: str) -> Environment:
    """Return the environment of a framework.

    Raises:
        BenchError: the framework is unknown or not installed.
    """
    if name == COMMAND.name:
        return Environment(COMMAND, Path(sys.executable))
    try:
        framework = find_framework(name)
        return Environment(framework, python_of(framework))
    except AgentEnvironmentError as error:
        raise BenchError(str(error)) from error


def _check(options: AgentOptions) -> None:
    if options.workers is not None and options.workers != at_once(options):
        raise BenchError(f"--workers {options.workers}, --arrivals {options.arrivals}: give one of them")
    if options.arrivals.startswith("recorded"):
        raise BenchError(f"--arrivals {options.arrivals}: tasks have no recorded arrivals")
    arrival_times(options.arrivals)


def _start(options: AgentOptions, endpoint: Endpoint, config: tuple[str, ...]) -> Start:
    """Return the message that starts a program, without the program's id, task and folders."""
    dialect = options.dialect or endpoint.dialect.name
    if dialect not in DIALECTS:
        raise BenchError(f"--dialect {dialect}: {which(dialect, DIALECTS)}")
    return Start(
        program_id="",
        task="",
        workspace="",
        base_url=endpoint.base_url,
        model=options.model or endpoint.models[0],
        run_dir="",
        trajectory="",
        dialect=dialect,
        content=options.content,
        config=config or tuple(options.config or find_framework(options.framework).config),
        step_limit=options.step_limit,
        tool_limit_s=options.tool_limit_s,
        environment=options.environment,
    )


def _arrivals(options: AgentOptions, tasks: list[Task], results: Results) -> list[Arrival]:
    """Return the programs still to be run, in a random order. A resumed batch has the same order."""
    rng = np.random.default_rng(options.seed)
    order = list(tasks)
    rng.shuffle(cast(Any, order))
    left = [task for task in order if task.instance_id not in results.predictions]
    return [
        Arrival(task, results.new_program_id(task.instance_id), at_s)
        for task, at_s in zip(left, _times(options, rng, left), strict=True)
    ]


def _times(options: AgentOptions, rng: np.random.Generator, tasks: Sequence[Task]) -> list[float | None]:
    """Return the second at which each program arrives; None: when a worker is free."""
    lanes = lanes_of(options.arrivals)
    if lanes is not None:
        step_s = lanes.ramp_s / lanes.number
        return [place * step_s if place < lanes.number else None for place in range(len(tasks))]
    if not tasks:
        return []
    return [float(at_s) for at_s in arrival_times(options.arrivals)(rng, options.jps, cast(Any, tasks))]


def _manifest(
    options: AgentOptions, tasks: Path, framework: Framework, endpoint: Endpoint, start: Start, work: Work
) -> Manifest:
    return Manifest(
        created=utc_now(),
        command=command_line(),
        continuum_version=version("continuum-ttl"),
        versions={
            "python": platform.python_version(),
            framework.distribution: framework.pinned_version,
            "vllm": endpoint.vllm_version or "not said",
        },
        engine="endpoint",
        policy=endpoint.policy,
        policy_options=dict(endpoint.state.get("policy_options", {})),
        seed=options.seed,
        workload={
            "name": f"agent {framework.name}",
            "file": tasks.name,
            "sha256": hashlib.sha256(tasks.read_bytes()).hexdigest(),
            "programs": len(work.tasks),
            "synthetic": False,
            **({"jps": options.jps} if uses_rate(options.arrivals) else {}),
            "arrivals": options.arrivals,
            "last_step": "known when the last request is sent at the step limit only; else told afterwards",
            **work.facts,
        },
        hardware=endpoint.hardware(start.model),
        engine_options={
            **{"dialect": start.dialect, "content": start.content, "config": list(start.config)},
            **{"step_limit": start.step_limit, "tool_limit_s": start.tool_limit_s, "environment": start.environment},
            **{"workers": at_once(options), "time_limit_s": options.time_limit_s},
        },
        modelled=endpoint.modelled,
        notes=(f"server: {endpoint.base_url}",),
    )


class Results:
    """The directory of a batch: programs.jsonl, preds.json or answers.json, and the records of the agents.

    Use it as a context manager. All agents must have ended when its block ends, also after an error.

    Raises:
        BenchError: the directory holds something else, or another batch is running in it.
    """

    def __init__(self, out: Path, manifest: Manifest, start: Start, source: str, answers: bool = False) -> None:
        self.out = out
        self.model = start.model
        self.records: list[ProgramRecord] = []
        self.to_run = 0
        """Number of programs that this command runs. A resumed batch runs fewer than all."""
        _claim(out, manifest)
        self._lock = Presence(out / LOCK)
        if not self._lock.alone:
            raise BenchError(f"--out {out}: another batch is running there")
        for name in ("logs",) if answers else ("logs", "workspaces"):
            (out / name).mkdir(exist_ok=True)
        self._recorder = Recorder(out, cast(Content, start.content), source)
        self._programs = SharedLines(out / PROGRAMS)
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

    def ended(self, record: ProgramRecord) -> None:
        """Record a program that ended, and its prediction if the program finished."""
        self.records.append(record)
        line = {name: value for name, value in asdict(record).items() if name != "submission"}
        self._programs.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if record.finished:
            self.predictions[record.instance_id] = self._prediction(record)
            write_json(self._file, self.predictions)
        turns, seconds = f"{record.turns} turns", (record.end_s or 0.0) - record.arrival_s
        why = f" ({record.error})" if record.error else ""
        tested = "" if record.passed is None else ", passes" if record.passed else ", fails its test"
        print_notice(f"{record.program_id}: {record.status}{tested}, {turns}, {seconds:.1f} s{why}")

    def _prediction(self, record: ProgramRecord) -> dict[str, Any]:
        """Return a prediction in SWE-bench's format, or an answer and whether it is right."""
        if self._answers:
            return {"status": record.status, "answer": record.submission, "passed": record.passed}
        return {
            "model_name_or_path": self.model,
            "instance_id": record.instance_id,
            "model_patch": record.submission,
        }

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exception: object) -> None:
        """Add the turns that killed processes did not write to the trace, and release the directory."""
        try:
            add_missing_turns(self.out)
        finally:
            self._programs.close()
            self._lock.close()


def _claim(out: Path, manifest: Manifest) -> None:
    """Create the directory, or check that it holds an earlier part of the same batch."""
    if (out / MANIFEST).exists():
        earlier = read_manifest(out)
        name = earlier.workload.get("name")
        if name != manifest.workload["name"]:
            raise BenchError(f"--out {out}: holds a run of {name or 'something else'}; choose another")
        if _against(earlier) != _against(manifest):
            raise BenchError(f"--out {out}: was begun against {_against(earlier)}; resume it there, or choose another")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"--out {out}: cannot create: {error.strerror}") from error
    write_manifest(out, manifest)


def _against(manifest: Manifest) -> str:
    """Return the server and the model of a batch, in words."""
    return f"{' '.join(manifest.notes)}, model {manifest.hardware.get('model')}"


def _show(results: Results, as_json: bool) -> None:
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
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
        return
    ends = {**cast(dict[str, int], summary["status"]), "not run": results.to_run - len(results.records)}
    counts = ", ".join(f"{count} {status}" for status, count in ends.items() if count)
    mean = f"; {summary['mean_s']:g} s from arrival to end on average" if times else ""
    passed = f"; {summary['passed']} of {summary['tested']} pass their test" if tested else ""
    print_notice(f"{summary['programs']} programs: {counts or 'all finished before'}{mean}{passed}")
