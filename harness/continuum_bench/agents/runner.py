"""Runs the programs of an agent framework, each in a process of its own, at most N at the same time.

A worker prepares the workspace of its next program and loads the program's process before the program arrives. If all
workers are busy, an arriving program waits for a worker and for its process to load. The clock starts when every worker
has loaded its first process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from continuum_agents.protocol import (
    BATCH_LABEL,
    DOCKER,
    PROGRAM_LABEL,
    Done,
    Failed,
    ServerState,
    Start,
    ToolEnded,
    TurnEnded,
)

from continuum_bench.agents import keeper
from continuum_bench.agents.environment import Environment
from continuum_bench.agents.process import AgentDied, AgentProcess
from continuum_bench.agents.results import DIED, ERROR, INTERRUPTED, TIME_LIMIT, ProgramRecord, Results
from continuum_bench.agents.tasks import Task, TaskError, prepare_workspace
from continuum_bench.show import print_notice

READY_TIMEOUT_S = 300.0
TEST_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """The tasks of a batch, and how its results are concluded."""

    tasks: list[Task]
    answers: bool = False
    """Programs end in an answer that their framework scores. They have no folder of code and no test."""
    scored: bool = False
    """Programs without a test have a verdict too, so a program that is stopped has failed."""
    conclude: Callable[[Results], None] | None = None
    """This function is called once all records are written. It is called after Ctrl-C too."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the workload for the manifest."""
    config: tuple[str, ...] = ()
    """The framework's configuration, if the harness writes it instead of the user."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Settings that all programs of a batch have in common."""

    environment: Environment
    work: Work
    start: Start
    """Completed for each program."""
    out: Path
    workers: int
    time_limit_s: float

    @property
    def in_folders(self) -> bool:
        """Whether programs work in folders of this machine, not in Docker images or without code."""
        return not self.work.answers and self.start.environment != DOCKER


@dataclass(frozen=True, slots=True)
class ArrivingTask:
    """A program and its arrival in seconds, counted from the start of the clock."""

    task: Task
    program_id: str
    at_s: float | None
    """None: the program arrives when a worker is free and its process is loaded (fixed concurrency)."""


def batch_label(out: Path) -> str:
    """Return the label of a batch's containers. It depends on the directory only, so it survives a resume."""
    return hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]


class Runner:
    """Plays one batch. ``run`` may be called once."""

    def __init__(self, batch: BatchSettings, arrivals: list[ArrivingTask], sink: Results) -> None:
        self._batch = batch
        self._left = iter(arrivals)
        self._sink = sink
        self._workers = min(batch.workers, len(arrivals))
        self._loading = asyncio.Semaphore(max(1, os.cpu_count() or 1))
        self._loaded = 0
        self._clock_runs = asyncio.Event()
        self._zero_s = 0.0
        self._processes: set[AgentProcess] = set()

    async def run(self) -> None:
        """Play all programs. If the task is cancelled, the programs that run are ended, and all their processes."""
        workers = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def kill(self) -> None:
        """Kill every process of every program at once."""
        for process in list(self._processes):
            process.kill()

    async def _work(self) -> None:
        for arrival in self._left:  # all workers share this iterator
            record = ProgramRecord(arrival.task.instance_id, arrival.program_id, arrival.at_s or 0.0)
            try:
                await self._play(arrival, record)
            except asyncio.CancelledError:
                record.status = INTERRUPTED
                if record.start_s is not None:
                    self._end(record)
                raise
            self._end(record)

    def _end(self, record: ProgramRecord) -> None:
        record.end_s = record.end_s or self._sink.offset_s()
        self._sink.ended(record)

    async def _play(self, arrival: ArrivingTask, record: ProgramRecord) -> None:
        """Prepare a program, wait for its arrival, and play it. Errors are written into the record."""
        process: AgentProcess | None = None
        try:
            async with self._loading:
                if self._batch.in_folders:
                    await asyncio.to_thread(prepare_workspace, arrival.task, self._workspace(arrival))
                process = await self._spawn(arrival)
                await process.wait_until_ready(READY_TIMEOUT_S)
            await self._wait_for(arrival, record)
            await self._converse(process, arrival, record)
        except (TaskError, AgentDied) as error:
            record.status = ERROR if isinstance(error, TaskError) else DIED
            log = "" if process is None else f"; logs/{record.instance_id}.log has what it said"
            record.error = f"{error}{log}"
            if record.start_s is None:
                await self._wait_for(arrival, record)
        finally:
            if process is not None:
                await process.end()
                self._processes.discard(process)
        ended = record.finished and record.status != TIME_LIMIT  # a program that was stopped has failed
        if ended and arrival.task.test is not None and self._batch.in_folders:
            record.passed = await _passes(arrival.task.test, self._workspace(arrival))

    async def _spawn(self, arrival: ArrivingTask) -> AgentProcess:
        batch, log = self._batch, self._batch.out / "logs" / f"{arrival.task.instance_id}.log"
        framework = batch.environment.framework
        process = await AgentProcess.spawn(batch.environment.python, framework.runner, framework.variables(), log)
        self._processes.add(process)
        return process

    def _workspace(self, arrival: ArrivingTask) -> Path:
        return self._batch.out / "workspaces" / arrival.task.instance_id

    async def _wait_for(self, arrival: ArrivingTask, record: ProgramRecord) -> None:
        """Wait until the program arrives. The clock starts when every worker has come here for the first time."""
        self._loaded += 1
        if self._loaded == self._workers:
            self._zero_s = self._sink.offset_s()
            self._clock_runs.set()
        await self._clock_runs.wait()
        now_s = self._sink.offset_s()
        record.arrival_s = now_s if arrival.at_s is None else round(self._zero_s + arrival.at_s, 6)
        await asyncio.sleep(max(0.0, record.arrival_s - now_s))

    async def _converse(self, process: AgentProcess, arrival: ArrivingTask, record: ProgramRecord) -> None:
        start = replace(
            self._batch.start,
            program_id=arrival.program_id,
            task=arrival.task.problem_statement,
            image=arrival.task.image,
            labels=(f"{BATCH_LABEL}={batch_label(self._batch.out)}", f"{PROGRAM_LABEL}={arrival.program_id}"),
            instance_id=arrival.task.instance_id,
            workspace=str(self._workspace(arrival)),
            run_dir=str(self._batch.out),
            trajectory=str(self._batch.out / arrival.task.instance_id / f"{arrival.task.instance_id}.traj.json"),
        )
        record.start_s = self._sink.offset_s()
        self._sink.started(record)
        await process.begin(start)
        try:
            await asyncio.wait_for(_listen(process, record), self._batch.time_limit_s)
        except asyncio.TimeoutError:
            record.status = TIME_LIMIT
            record.error = f"stopped after {self._batch.time_limit_s:g} s"
            record.passed = False if self._batch.work.scored or arrival.task.test is not None else None
            record.blame_server()
        finally:
            record.end_s = self._sink.offset_s()  # not the end of the process, which comes later


async def _listen(process: AgentProcess, record: ProgramRecord) -> None:
    """Read a process's events until its program ends.

    Raises:
        AgentDied: the process ended first.
    """
    async for event in process.events():
        if isinstance(event, TurnEnded):
            record.turns += 1
        elif isinstance(event, ToolEnded):
            record.tools = (*record.tools, event.name)
            record.tool_s = round(record.tool_s + event.seconds, 6)
        elif isinstance(event, ServerState):
            record.server_failure = event.failure
        elif isinstance(event, Done):
            record.status, record.submission, record.passed = event.exit_status, event.submission, event.passed
            record.blame_server()
            return
        elif isinstance(event, Failed):
            record.status, record.error = ERROR, event.message
            record.blame_server()
            return
    raise await process.died()


async def _passes(test: str, workspace: Path) -> bool:
    """Return whether the task's test passes on the code that the agent left."""
    process = await asyncio.create_subprocess_exec(
        *keeper.kept(["/bin/sh", "-c", test]),
        cwd=workspace,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return await asyncio.wait_for(process.wait(), TEST_TIMEOUT_S) == 0
    except asyncio.TimeoutError:
        return False
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, keeper.KILL)
            await process.wait()


async def play(batch: BatchSettings, arrivals: list[ArrivingTask], sink: Results) -> bool:
    """Play a batch. Returns False if a signal stopped it; a second signal kills all processes at once."""
    runner = Runner(batch, arrivals, sink)
    running = asyncio.create_task(runner.run())

    def stop() -> None:
        if running.cancelling():
            runner.kill()
        else:
            print_notice("stopping: programs that run are ended and their records kept; again kills at once")
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await running
    except asyncio.CancelledError:
        return False
    finally:
        runner.kill()
    return True
