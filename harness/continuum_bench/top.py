"""``continuum-bench top``: the programs of live servers, as ``GET /continuum/state`` lists them."""

from __future__ import annotations

import os
import threading
import urllib.error
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec
from continuum_server.vllm_plugin.state import LISTED
from continuum_traces.wire.urls import root_of
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from continuum_bench.errors import BenchError, OptionError
from continuum_bench.live.endpoint import NO_ANSWER, check_url, get_json, wait_for_server
from continuum_bench.options.serve import TopOptions
from continuum_bench.show import Terminal, print_json, table_console

STATES = {
    "running": "running",
    "waiting": "in the queue",
    "held": "held",
    "soft": "soft hold",
    "idle": "idle",
    "ended": "ended",
}
"""What the state calls a program, in the order of the table, and what the table calls it."""
WINDOW_S = 60.0
"""Seconds over which hits per minute are counted."""
ONCE = 40
"""Programs that ``--once`` shows unless ``--limit`` is given."""
LONGEST, BAR = 36, 8
"""Most characters of a cell, and the width of a bar."""


class Left(msgspec.Struct):
    """Where the prompt of a program's turn left that of the turn before."""

    turn: int
    token: int
    of: int
    times: int


class ProgramRow(msgspec.Struct):
    """A row of ``program_list`` of an engine's state."""

    program_id: str
    recognised_by: str
    turns: int
    context_tokens: int
    state: str
    for_s: float | None
    expires_in_s: float | None
    hit_share: float | None
    parent_id: str | None = None
    left: Left | None = None


class Counted(msgspec.Struct):
    unpins: dict[str, int]
    turns: dict[str, int]
    prompt_tokens: int
    hit_tokens: int


class Key(msgspec.Struct):
    """What an API key has, in ``keys`` of an engine's state."""

    key: str
    weight: float
    share: float
    fair_share: float
    virtual_s: float
    running: int
    waiting: int
    longest_wait_s: float


class PinRow(msgspec.Struct):
    """A pin or a soft hold."""

    program_id: str
    tokens: int


class EngineState(msgspec.Struct):
    """The part of an engine's state that is shown."""

    policy: str
    now_s: float
    free_blocks: int
    pool_blocks: int
    pinned_share: float
    pins_held: int
    running: int
    waiting: int
    programs: int
    keys: list[Key]
    program_list: list[ProgramRow]
    metrics: Counted
    plugin_errors: int
    tags_rejected: int
    record_events_dropped: int
    hints_ignored: dict[str, int] = {}
    pins: list[PinRow] = []
    soft_holds: list[PinRow] = []
    kv_groups: list[str] = []
    """The model's KV cache groups, and what a hold keeps of them, in words."""
    name: str = ""
    """Its server's address, and its number if the server has several engines. Set when it was read."""
    hits_per_minute: float | None = None
    """How many turns per minute found their program's KV held; None: not known after a single reading. Set likewise."""

    @property
    def used_share(self) -> float:
        """Share of the KV pool that requests and holds use. The rest is free, with or without cached KV."""
        return 1.0 - self.free_blocks / max(1, self.pool_blocks)

    @property
    def hit_share(self) -> float | None:
        """Share of all prompt tokens since the server's start whose KV was found."""
        return self.metrics.hit_tokens / self.metrics.prompt_tokens if self.metrics.prompt_tokens else None

    @property
    def errors(self) -> dict[str, int]:
        return {
            "plugin": self.plugin_errors,
            "turns": self.metrics.turns.get("error", 0),
            "tags": self.tags_rejected,
            "record": self.record_events_dropped,
        }


class States(msgspec.Struct):
    """The page of a server: the state of each engine."""

    engines: list[EngineState]


@dataclass
class WatchedServer:
    """One server, as it was read last. Each reading replaces the one before as a whole, for threads that draw it."""

    base_url: str
    api_key: str | None = field(repr=False)
    limit: int
    engines: Sequence[EngineState] = ()
    error: str | None = None
    """Why the last reading failed, in one line."""
    _hits: defaultdict[int, deque[tuple[float, int]]] = field(default_factory=lambda: defaultdict(deque))

    @property
    def root(self) -> str:
        return root_of(self.base_url)

    def read(self) -> None:
        try:
            page = f"{self.root}/continuum/state?limit={min(self.limit, LISTED)}"
            engines = get_json(page, self.api_key, States).engines
        except NO_ANSWER as error:
            self.engines, self.error = (), why_no_state(error)
            return
        for number, engine in enumerate(engines):
            engine.name = self.root.partition("://")[2] + (f" #{number}" if len(engines) > 1 else "")
            engine.hits_per_minute = self._rate(number, engine)
        self.engines, self.error = engines, None

    def _rate(self, number: int, engine: EngineState) -> float | None:
        marks, now_s, hits = self._hits[number], engine.now_s, engine.metrics.unpins.get("hit", 0)
        if marks and (hits < marks[-1][1] or now_s < marks[-1][0]):  # the server was started again
            marks.clear()
        marks.append((now_s, hits))
        while len(marks) > 2 and marks[1][0] <= now_s - WINDOW_S:
            marks.popleft()
        passed_s = marks[-1][0] - marks[0][0]
        return (marks[-1][1] - marks[0][1]) * 60.0 / passed_s if passed_s > 0.0 else None


def why_no_state(error: Exception) -> str:
    """Say in one line why a server's state could not be read."""
    if isinstance(error, urllib.error.HTTPError):
        if error.code in (401, 403):
            return f"{error.code} {error.reason}; is the API key set (OPENAI_API_KEY, --api-key-env)?"
        if error.code == 404:
            return "404 from /continuum/state; is this vLLM with Continuum's middleware, and the URL its own up to /v1?"
        try:
            reason = msgspec.json.decode(error.read(), type=dict[str, str])["error"]
        except (*NO_ANSWER, KeyError):
            reason = error.reason
        return f"{error.code} {reason}"
    if isinstance(error, msgspec.MsgspecError):
        return f"/continuum/state is not of this version of Continuum: {error}"
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    return f"no server answers: {' '.join(str(why).split()) or type(error).__name__}"


# -------------------------------------------------------------------------------------------------- the command


def show_top(options: TopOptions) -> int:
    """Show the servers once or until Ctrl-C. Returns 1 if one of several servers does not answer once.

    Raises:
        BenchError: a URL is none, or no server answers the first time.
        OptionError: a live view is asked for where no terminal is.
    """
    console = Terminal()
    if not (options.once or console.is_terminal):
        raise OptionError("top: the output is no terminal; use --once")
    key = os.environ.get(options.api_key_env) or None
    for url in options.base_url:
        check_url(url)
        if options.wait:
            wait_for_server(url, key)
    servers = [
        WatchedServer(url, key, options.limit or (ONCE if options.once else console.height)) for url in options.base_url
    ]
    _read(servers)
    if all(server.error for server in servers):
        raise BenchError("; ".join(f"--base-url {server.base_url}: {server.error}" for server in servers))
    if not options.once:
        _show_live(console, servers, options)
    threading.Event().wait(options.interval)  # hits per minute need a second reading
    _read(servers)
    if options.json_output:
        print_json({"servers": [_as_json(server) for server in servers]})
    else:
        console = table_console()
        console.print(view(servers, console.width, options.limit or ONCE))
    return int(any(server.error for server in servers))


def _read(servers: Sequence[WatchedServer]) -> None:
    """Read all servers at the same time."""
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(WatchedServer.read, servers))


def _show_live(console: Console, servers: Sequence[WatchedServer], options: TopOptions) -> None:
    """Show the servers until Ctrl-C. Each is read in a thread of its own, so that none waits for another."""
    stopped = threading.Event()

    def follow(server: WatchedServer) -> None:
        while not stopped.wait(options.interval):
            server.limit = options.limit or console.height
            server.read()

    def screen() -> RenderableType:
        lines = console.height - len(servers) - sum(max(1, len(server.engines)) for server in servers) - 4
        return view(servers, console.width, min(options.limit or lines, max(1, lines)))

    for server in servers:
        threading.Thread(target=follow, args=(server,), daemon=True).start()
    with Live(console=console, screen=True, refresh_per_second=2, get_renderable=screen):
        stopped.wait()


def _as_json(server: WatchedServer) -> dict[str, Any]:
    engines = [msgspec.to_builtins({name: getattr(engine, name) for name in SHOWN}) for engine in server.engines]
    return {"base_url": server.base_url, "error": server.error, "engines": engines}


SHOWN = (
    *("policy", "used_share", "pinned_share", "pins_held", "running", "waiting", "programs", "hit_share"),
    *("errors", "hits_per_minute", "keys", "program_list"),
)
"""Attributes of ``EngineState`` that ``--json`` has."""


# ------------------------------------------------------------------------------------------------------ the view


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    cell: Callable[..., RenderableType]
    """Makes the cell of a row."""
    from_width: int = 0
    """Columns of a terminal below which this one is left out."""
    words: bool = False
    """Aligned to the left."""
    ids: bool = False
    """Shortened before other columns."""


def view(servers: Sequence[WatchedServer], width: int, rows: int) -> Group:
    """Return the tables of engines and of programs, as wide as the terminal, with at most ``rows`` programs."""
    engines = [engine for server in servers for engine in server.engines]
    order = {state: place for place, state in enumerate(STATES)}
    programs = [(engine, program) for engine in engines for program in engine.program_list]
    programs.sort(key=lambda row: order.get(row[1].state, len(order)))
    in_memory = sum(engine.programs for engine in engines)
    shown = sum(program.state != "ended" for _, program in programs[:rows])
    failed = [Text(f"{server.base_url}: {server.error}", "red") for server in servers if server.error]
    columns = PROGRAM_COLUMNS if len(engines) > 1 else PROGRAM_COLUMNS[1:]
    keys = [(engine, key) for engine in engines for key in engine.keys]
    of_keys: list[RenderableType] = (
        ["", _table(KEY_COLUMNS if len(engines) > 1 else KEY_COLUMNS[1:], keys, width)] if keys else []
    )
    return Group(
        *([_table(ENGINE_COLUMNS, [(engine,) for engine in engines], width)] if engines else []),
        *failed,
        *of_keys,
        "",
        _table(columns, programs[:rows], width),
        Text(
            f"{shown:,} of {in_memory:,} programs that the server remembers; running ones first, ended ones last", "dim"
        ),
    )


def _table(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]], width: int) -> Table:
    """Return a table of the columns that a terminal of this width has room for. Ids are shortened first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [column for column in columns if width >= column.from_width]
    for column in shown:
        side: Any = "left" if column.words or column.ids else "right"
        table.add_column(column.heading, justify=side, no_wrap=not column.ids, max_width=LONGEST)
    for row in rows:
        table.add_row(*(column.cell(*row) for column in shown))
    return table


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(seconds: float | None) -> str:
    if seconds is None or seconds < 0.0:  # a deadline that has passed ends before the next step
        return ""
    return f"{seconds:.0f} s" if seconds < 600.0 else f"{seconds / 60:.0f} min"


def _bar(engine: EngineState, program: ProgramRow) -> RenderableType:
    """Return how much of a hold is left."""
    if program.state not in ("held", "soft") or program.expires_in_s is None or program.for_s is None:
        return ""
    whole_s = program.for_s + program.expires_in_s
    return ProgressBar(total=max(whole_s, 1e-9), completed=max(0.0, program.expires_in_s), width=BAR)


def _errors(engine: EngineState) -> Text:
    errors = [f"{count} {what}" for what, count in engine.errors.items() if count]
    return Text(", ".join(errors) or "none", "red" if errors else "")


def _rate(engine: EngineState) -> str:
    return "-" if engine.hits_per_minute is None else f"{engine.hits_per_minute:.1f}"


def _id(name: str) -> Text:
    return Text(name, no_wrap=True, overflow="ellipsis")


KEY_COLUMNS = (
    Column("server", lambda engine, key: _id(engine.name), 85, ids=True),
    Column("key", lambda engine, key: Text(key.key), words=True),
    Column("weight", lambda engine, key: f"{key.weight:g}", 70),
    Column("memory", lambda engine, key: _share(key.share)),
    Column("fair share", lambda engine, key: _share(key.fair_share), 60),
    Column("engine time", lambda engine, key: _seconds(key.virtual_s)),
    Column("running", lambda engine, key: f"{key.running:,}"),
    Column("queue", lambda engine, key: f"{key.waiting:,}"),
    Column("longest wait", lambda engine, key: _seconds(key.longest_wait_s)),
)
"""The table of API keys. Its engine time is the virtual time."""
ENGINE_COLUMNS = (
    Column("server", lambda engine: _id(engine.name), 85, ids=True),
    Column("policy", lambda engine: Text(engine.policy), 70, words=True),
    Column("pool used", lambda engine: _share(engine.used_share)),
    Column("held", lambda engine: _share(engine.pinned_share)),
    Column("pins", lambda engine: f"{engine.pins_held:,}"),
    Column("running", lambda engine: f"{engine.running:,}"),
    Column("queue", lambda engine: f"{engine.waiting:,}"),
    Column("hits/min", _rate, 60),
    Column("hit tokens", lambda engine: _share(engine.hit_share), 100),
    Column("errors", _errors),
)
PROGRAM_COLUMNS = (
    Column("server", lambda engine, program: _id(engine.name), 80, ids=True),
    Column("program", lambda engine, program: _id(program.program_id), ids=True),
    Column("known by", lambda engine, program: Text(program.recognised_by or "-"), 90, words=True),
    Column("turns", lambda engine, program: str(program.turns), 65),
    Column("context", lambda engine, program: f"{program.context_tokens:,}"),
    Column("hit", lambda engine, program: _share(program.hit_share), 60),
    Column("state", lambda engine, program: Text(STATES.get(program.state, program.state)), words=True),
    Column("for", lambda engine, program: _seconds(program.for_s), 75),
    Column("left", lambda engine, program: _seconds(program.expires_in_s)),
    Column("", _bar, 90, words=True),
)
