"""Runs honest agents beside hostile clients for minutes on a real vLLM server, and counts what is lost.

    python benchmarks/soak.py [--minutes 10] [--policy vllm,continuum] [--seed 0] [--folder DIR]

Each policy gets one emulated server (vLLM's own, with a modelled GPU). Honest agents hold conversations of several
turns. Beside them hostile clients hang up at every stage of a request, send malformed ids and tags, use the ids of
others, and stop reading. After half of the time the engine core is killed (``kill -9``), and the server is started
again with the same record. At the end the clients leave, and what remains is counted. Prints the tables of
docs/results/limits.md. Exit status 1: something was lost. Nothing leaves this machine, and no process outlives the
command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from commands import show
from continuum_analysis.compare.words import markdown
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import PolicyError, find_policy
from continuum_server.server_command import model_name
from continuum_server.server_config import ServerConfig, ServerError
from continuum_traces.json_io import RunDirError
from continuum_traces.records import read_events
from continuum_traces.records.run_dir import EVENTS
from continuum_traces.schema import SchedulerEvent
from soak_clients import ACTS, Agent, Hostile, Seen, Site

DEFAULT = "vllm,program-fcfs,static-ttl,continuum,working-set"
MAX_TTL_S = 20.0
"""The server's limit on TTLs. Hostile clients ask for a day; with this limit such pins end soon after the clients
leave."""
LEAVE_S = 150.0
"""Seconds that agents get at the end to finish the programs they have begun."""
REST_S = MAX_TTL_S + 20.0
"""Seconds that the server gets after that until nothing runs, waits or is pinned."""
MOST_DEATHS = 3
"""Deaths of the engine that this command did not cause; after more of them the run is given up."""
CLIENTS = 6
"""Honest agents, and as many hostile clients, at the same time."""
KV_BLOCKS, TIME_SCALE, MAX_GROWTH_MB = 1200, 2.0, 200.0
"""The server's pool, modelled seconds in each real second, and the growth of a process that counts as lost."""
SAMPLE_S = 2.0
"""Seconds between two samples of the processes' memory."""


class SoakError(Exception):
    """The run cannot be continued."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


# ------------------------------------------------------------------------------------------------- processes


def engine_core(server: Server) -> int | None:
    """Return the process id of the server's engine core; None if it is not found."""
    with suppress(psutil.Error):
        for child in psutil.Process(server.process.pid).children():
            if child.name().startswith("VLLM::Engine"):
                return child.pid
    return None


@dataclass
class Memory:
    """Samples of the resident memory of each process of the server."""

    samples: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def add(self, name: str, pid: int | None) -> None:
        with suppress(psutil.Error):
            if pid is not None:
                self.samples.setdefault((name, pid), []).append(psutil.Process(pid).memory_info().rss / 2**20)

    def growth_mb(self, name: str) -> float:
        """Return the largest growth of a process with that name after the first quarter of its life."""
        grown = [0.0]
        for (process, _), values in self.samples.items():
            if process == name and len(values) > 4:
                grown.append(statistics.median(values[-3:]) - max(values[: len(values) // 4 + 1]))
        return max(grown)


# -------------------------------------------------------------------------------------------------- the soak


@dataclass
class Soak:
    """The run of one policy."""

    config: ServerConfig
    folder: Path
    seen: Seen = field(default_factory=Seen)
    memory: Memory = field(default_factory=Memory)
    kills: int = 0
    deaths: int = 0
    """Deaths of the engine that this command did not cause."""

    def __post_init__(self) -> None:
        self.site = Site(model_name(self.config), int(self.config.max_model_len or 0))
        self.server: Server | None = None
        self._asked = False

    # ------------------------------------------------------------------------------ its server

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    async def start(self) -> None:
        self.server = Server(self.config, self.log)
        try:
            await asyncio.to_thread(self.server.wait_until_healthy)
        except BaseException:
            self.server.kill()  # the thread that waits for the server then ends
            raise
        self.site.up(self.server.port)

    def stop(self) -> None:
        """Stop the server if it was started, whatever its state is."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    async def watch(self) -> None:
        """Start the server again when it has ended, and sample its memory."""
        while True:
            assert self.server is not None
            if self.server.process.poll() is not None:
                await self.revive()
            for name, pid in (("engine", engine_core(self.server)), ("API server", self.server.process.pid)):
                self.memory.add(name, pid)
            await asyncio.sleep(SAMPLE_S)

    async def revive(self) -> None:
        self.site.down()
        self.kills += self._asked
        self.deaths += not self._asked
        self._asked = False
        if self.deaths > MOST_DEATHS:
            raise SoakError(f"the engine died {self.deaths} times; log {self.log}")
        self.stop()
        await self.start()

    async def kill(self) -> None:
        """``kill -9`` the engine core. The API server then ends by itself, or is killed after a minute."""
        assert self.server is not None
        core = engine_core(self.server)
        if core is None:
            raise SoakError("the engine core was not found")
        self._asked = True
        self.site.down()
        os.kill(core, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.server.process.wait, 60.0)
            return
        self.server.kill()

    # -------------------------------------------------------------------------------- its clients

    async def run(self, seconds: float, seed: int) -> dict[str, Any]:
        """Run the whole soak, and return the engine's state at rest."""
        await self.start()
        watching = asyncio.ensure_future(self.watch())
        honest = [Agent(self.site, self.seen, f"{n}", seed + n).run() for n in range(CLIENTS)]
        others = [Hostile(self.site, self.seen, f"{n}", seed + 1000 + n).run() for n in range(CLIENTS)]
        playing = [asyncio.ensure_future(each) for each in (*honest, *others)]
        try:
            await self.beside(watching, self.two_halves(seconds))
            await self.beside(watching, asyncio.wait(playing, timeout=LEAVE_S))
            self.count_unfinished(playing)
            state: dict[str, Any] = await self.beside(watching, self.at_rest())
        finally:
            await ended([watching, *playing])
        return state

    async def two_halves(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 2)
        await self.kill()
        await self.site.is_up.wait()
        await asyncio.sleep(seconds / 2)
        self.site.is_over = True

    async def beside(self, watching: asyncio.Future[None], doing: Coroutine[Any, Any, Any]) -> Any:
        """Wait until ``doing`` is done or ``watching`` fails.

        Raises:
            SoakError, ServerError: the server cannot be kept running.
        """
        task = asyncio.ensure_future(doing)
        await asyncio.wait([task, watching], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await ended([task])
            watching.result()
        return task.result()

    def count_unfinished(self, playing: Sequence[asyncio.Future[None]]) -> None:
        for number, each in enumerate(playing):
            if not each.done() and number < CLIENTS:
                self.seen.failures.append(f"agent {number}: its program did not end within {LEAVE_S:g} s")
            elif each.done() and each.exception() is not None:
                raise SoakError(f"a client of the soak failed: {each.exception()!r}") from each.exception()

    async def at_rest(self) -> dict[str, Any]:
        """Wait until nothing runs, waits or is pinned, or for ``REST_S`` seconds, and return the engine's state."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + REST_S
        while True:
            state: dict[str, Any] = await asyncio.to_thread(self.state)
            busy = any(state[name] for name in ("running", "waiting", "pins", "soft_holds"))
            if clock() > until_s or not busy:
                return state
            await asyncio.sleep(0.5)

    def state(self) -> dict[str, Any]:
        assert self.server is not None
        with urlopen(f"{self.server.url}/continuum/state", timeout=30.0) as answer:
            return dict(json.load(answer)["engines"][0])


async def ended(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ------------------------------------------------------------------------------------------ what was left behind


@dataclass(frozen=True)
class Record:
    """Counts of events in the server's record of the whole run, including the kill."""

    events: int = 0
    unended: int = 0
    """Arrivals without a finish, finishes without an arrival, pins without an end."""
    aborted_waiting: int = 0
    aborted_running: int = 0
    fault: str | None = None
    """Why the record cannot be read."""


def read_record(folder: Path) -> Record:
    try:
        events = list(read_events(folder))
    except RunDirError as error:
        return Record(fault=str(error))
    started = {event.request_id for event in events if event.event == "start"}
    aborted = [event.request_id in started for event in events if event.status == "abort"]
    return Record(len(events), _unended(events), aborted.count(False), aborted.count(True))


def _unended(events: Sequence[SchedulerEvent]) -> int:
    turns: Counter[str | None] = Counter()
    pins: Counter[str] = Counter()
    for event in events:
        turns[event.request_id] += (event.event == "arrive") - (event.event == "finish")
        pins[event.program_id] += (event.event == "pin") - (event.event == "unpin")
    return sum(map(abs, turns.values())) + sum(map(abs, pins.values()))


OURS = "/continuum_server/"
EXPECTED = ("could not be read and is ignored", "statistics from", "died; its requests fail")
"""What the plugin logs of tags that it refuses, of tool statistics, and of an engine that was killed. Deaths that
nobody asked for are counted apart."""


def plugin_errors(log: str) -> list[str]:
    """Return warnings and errors of the plugin, and tracebacks that end in its code."""
    faults, frame, in_traceback = [], "", False
    for raw in log.splitlines():
        line = re.sub(r"^\([^)]*\) (?:[A-Z]+ \S+ \S+ \[[^\]]*\] ?)?", "", raw)
        if line.startswith("Traceback (most recent call last)"):
            in_traceback, frame = True, ""
        elif in_traceback and line.lstrip().startswith('File "'):
            frame = line
        elif in_traceback and line and not line.startswith(" "):
            in_traceback = False
            if OURS in frame:
                faults.append(f"{line} at {frame.strip()}")
        elif "continuum: " in line and not any(each in line for each in EXPECTED):
            faults.append(line)
    return faults


# ---------------------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class Cell:
    """One result of the run of one policy."""

    text: str
    is_loss: bool = False

    def __str__(self) -> str:
        return f"**{self.text}**" if self.is_loss else self.text


Rows = dict[str, Cell]


def none_wanted(number: int) -> Cell:
    return Cell(str(number), number > 0)


def tried(soak: Soak, record: Record, state: dict[str, Any]) -> Rows:
    seen = soak.seen
    return {
        "honest programs": Cell(str(seen.programs)),
        "honest requests": Cell(str(seen.turns)),
        **{name: Cell(str(seen.acts[name])) for name in ACTS},
        "aborted while they waited (record)": Cell(str(record.aborted_waiting)),
        "aborted while they ran (record)": Cell(str(record.aborted_running)),
        "answers to hostile requests": Cell(", ".join(f"{n} {kind}" for kind, n in sorted(seen.answers.items()))),
        "tags refused since the restart": Cell(str(state["tags_rejected"])),
        "engine killed": Cell(str(soak.kills)),
        "honest requests sent again after it": Cell(str(seen.retries)),
    }


def lost(soak: Soak, record: Record, state: dict[str, Any]) -> Rows:
    seen, all_blocks = soak.seen, KV_BLOCKS - 1  # vLLM keeps the null block
    free, dropped = int(state["free_blocks"]), int(state["record_events_dropped"])
    errors = plugin_errors(soak.log.read_text(encoding="utf-8", errors="replace"))
    rows = {
        "honest requests failed": none_wanted(len(seen.failures)),
        "engine deaths not asked for": none_wanted(soak.deaths),
        "answers 5xx to hostile requests": none_wanted(seen.answers["5xx"]),
        "free blocks at rest": Cell(f"{free} of {all_blocks}", free != all_blocks),
        "pins left at rest": none_wanted(state["pins_held"]),
        "plugin errors in the log": none_wanted(len(errors)),
        "record": Cell("unreadable" if record.fault else f"{record.events} events", record.fault is not None),
        "arrivals and pins without an end": none_wanted(record.unended),
        "events dropped, since the restart": none_wanted(dropped),
    }
    for name in ("engine", "API server"):
        grown_mb = soak.memory.growth_mb(name)
        rows[f"memory growth of the {name}, MB"] = Cell(f"{grown_mb:.0f}", grown_mb > MAX_GROWTH_MB)
    for text in [*seen.failures[:10], *errors[:10], *([record.fault] if record.fault else [])]:
        say(f"{soak.config.policy}: {text}")
    return rows


def fairness(soak: Soak) -> Rows:
    times = soak.seen.programs_s
    if not times:
        return {"honest program: median, slowest, s": Cell("none was timed", True)}
    median, slowest = statistics.median(times), max(times)
    return {"honest program: median, slowest, s": Cell(f"{median:.1f}, {slowest:.1f} ({slowest / median:.1f} x)")}


# ------------------------------------------------------------------------------------------------------ command


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of traffic for each policy")
    parser.add_argument("--policy", default=DEFAULT, help=f"separated by commas; default {DEFAULT}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep logs and records in this folder; it must not contain any yet")
    return parser.parse_args()


def config_of(policy: str, folder: Path) -> ServerConfig:
    return ServerConfig(
        policy=find_policy(policy).name,
        port=0,
        kv_blocks=KV_BLOCKS,
        max_model_len=KV_BLOCKS * 16 * 3 // 4,
        guards=Guards(max_ttl_s=MAX_TTL_S),
        emulated=EmulatedSettings(time_scale=TIME_SCALE),
        record=folder / "record",
        drain_s=5,
        vllm_arguments=("--disable-uvicorn-access-log",),
    )


def soak_policy(policy: str, options: argparse.Namespace, folder: Path) -> tuple[Rows, Rows]:
    """Run one policy, and return the tables of what was tried and of what was lost."""
    if (folder / "record" / EVENTS).exists():
        raise SoakError(f"{folder}: holds a record already")
    say(f"{policy}: {options.minutes:g} minutes of traffic; log {folder / 'server.log'}")
    soak = Soak(config_of(policy, folder), folder)
    try:
        state = asyncio.run(soak.run(60 * options.minutes, options.seed))
    finally:
        soak.stop()
    record = read_record(folder / "record")
    return tried(soak, record, state), {**lost(soak, record, state), **fairness(soak)}


def main() -> int:
    options = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # on which asyncio cancels its tasks
    policies = [name.strip() for name in options.policy.split(",") if name.strip()]
    runs: dict[str, tuple[Rows, Rows]] = {}
    with tempfile.TemporaryDirectory(prefix="continuum-soak-") as temporary:
        folder = options.folder or Path(temporary)
        try:
            for policy in policies:
                runs[policy] = soak_policy(policy, options, folder / policy)
        except (SoakError, ServerError, RunDirError, PolicyError) as error:
            say(f"soak: {policy}: {error}")
        except KeyboardInterrupt:
            say("soak: stopped")
    report(runs)
    done = len(runs) == len(policies)
    return int(not done or any(cell.is_loss for _, lost in runs.values() for cell in lost.values()))


def report(runs: dict[str, tuple[Rows, Rows]]) -> None:
    for number, title in enumerate(("Tried", "Lost") if runs else ()):
        columns = [run[number] for run in runs.values()]
        rows = [[name, *(str(column[name]) for column in columns)] for name in columns[0]]
        show((f"{title}:", "", *markdown(["", *runs], rows), ""))


if __name__ == "__main__":
    sys.exit(main())
