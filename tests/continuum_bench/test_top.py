"""``continuum-bench top``: its tables from a real engine's state, its messages, and its screen in a terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench, refused, succeeded
from continuum_bench.top import WatchedServer, view
from continuum_server.policy.facts import Hold, TurnFinish
from continuum_server.vllm_plugin.online import Online
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.state import engine_state
from continuum_traces.schema import SchedulerEvent
from fake_server import FakeServer, Json
from live_server import Live, tokens
from nano import build
from rich.console import Console
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

PAGE = "/continuum/state"
LONG = "agent-[red]-" + "x" * 60
"""An id that is longer than its column, and would be a colour to rich."""
SHORT = LONG[:35] + "…"


def state_of(prefix: str = "", hits: int = 0) -> Json:
    """The state page of a real scheduler: a program runs, one waits, one is held for a minute, one idles, one ended."""
    scheduler, _ = build([], "static-ttl", {"ttl_s": 60.0}, scheduler_type=ProgramScheduler)
    online, table, now_s = Online(scheduler, Settings("static-ttl")), scheduler.table, scheduler.clock()
    for name in ("waits", "idle", "ended", "held", LONG):
        sampling = SamplingParams(max_tokens=1, extra_args={"program_id": prefix + name})
        scheduler.add_request(Request(name, list(range(100)), sampling, None))
    for name, hit_tokens in (("idle", 0), ("ended", 100), ("held", 80), (LONG, 5)):
        turn = table.turn(name)
        turn.tags.is_last_step = name == "ended"
        table.start(turn, now_s, hit_tokens, block_size=16)
        if name != LONG:
            table.finish(TurnFinish(turn, now_s, 12_345, 20, "ls"))
        if name == "held":
            table.pins.add(turn, now_s, Hold(60.0), [1])
    for _ in range(hits):
        online.write(SchedulerEvent(now_s, "unpin", "p", 0, reason="hit"))
    page = {"engines": [engine_state(json.loads(online.call("state", "{}")))]}
    scheduler.running = []
    for program_id in list(table.pins):
        table.pins.end(program_id)
    online.close()
    return page


@pytest.fixture(scope="module")
def page() -> Json:
    return state_of()


@pytest.fixture
def fake(page: Json) -> Iterator[FakeServer]:
    with FakeServer("plugin") as found:
        found.pages[PAGE] = 200, page
        yield found


ONCE = "top --once --interval 0.1 --base-url"


def test_a_table_says_what_each_key_has(fake: FakeServer, page: Json) -> None:
    row = {"share": 0.25, "fair_share": 0.75, "virtual_s": 12.0, "running": 2, "waiting": 3, "longest_wait_s": 4.0}
    [engine] = page["engines"]
    fake.pages[PAGE] = 200, {"engines": [{**engine, "keys": [{"key": "a" * 16, "weight": 3.0, **row}]}]}
    lines = [" ".join(line.split()) for line in succeeded(ONCE, fake.url).stdout.splitlines()]
    place = lines.index("key weight memory fair share engine time running queue longest wait")
    assert lines[place + 1] == f"{'a' * 16} 3 25% 75% 12 s 2 3 4 s"


def test_what_a_server_says_moves_no_cursor(fake: FakeServer, page: Json) -> None:
    [engine] = page["engines"]
    rows = [{**row, "program_id": "\x1b[2J\x07" + row["program_id"]} for row in engine["program_list"]]
    fake.pages[PAGE] = 200, {"engines": [{**engine, "policy": "\x9b31m\u202e", "program_list": rows}]}
    printed = succeeded(ONCE, fake.url).stdout
    assert r"\x1b[2J" in printed
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_a_table_says_what_each_program_does(fake: FakeServer) -> None:
    done = succeeded(ONCE, fake.url)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert " ".join(lines[0]) == "server policy pool used held pins running queue hits/min hit tokens errors"
    assert lines[1][1:] == ["static-ttl", "2%", "2%", "1", "0", "5", "-", "-", "none"]
    assert [words[:7] for words in lines[4:9]] == [
        [SHORT, "tag", "1", "100", "5%", "running", "0"],
        ["waits", "tag", "1", "100", "-", "in", "the"],
        ["held", "tag", "1", "12,345", "80%", "held", "0"],
        ["idle", "tag", "1", "12,345", "0%", "idle", "0"],
        ["ended", "tag", "1", "12,345", "100%", "ended", "0"],
    ]
    assert lines[9][:3] == ["4", "of", "4"]


def test_json_has_what_the_table_has(fake: FakeServer, page: Json) -> None:
    [found] = json.loads(succeeded(ONCE, f"{fake.root}/", "--limit", 9, "--json").stdout)["servers"]
    assert found["error"] is None
    [engine] = found["engines"]
    assert engine["program_list"] == page["engines"][0]["program_list"]
    assert engine["errors"] == {"plugin": 0, "turns": 0, "tags": 0, "record": 0}
    assert (engine["pins_held"], engine["hits_per_minute"]) == (1, None)  # its clock stands still


def shown(servers: list[WatchedServer], width: int, rows: int = 40) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(view(servers, width, rows))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [20, 43, 60, 90])
def test_every_width_shows_ids_and_states(fake: FakeServer, width: int) -> None:
    read = WatchedServer(fake.url, None, 40)
    read.read()
    lines = shown([read], width)
    assert max(map(len, lines)) <= width
    for word in ("running", "in the queue" if width > 20 else "i", "held"):
        assert any(word in line for line in lines), lines
    assert any("━" in line for line in lines) == (width >= 90)
    assert any("tag" in line for line in lines) == (width >= 90)


def test_what_fits_is_shown_of_all_engines(fake: FakeServer) -> None:
    """Running programs of every engine come before any that waits."""
    fake.pages[PAGE] = 200, {"engines": state_of("a-")["engines"] + state_of("b-")["engines"]}
    read = WatchedServer(fake.url, None, 40)
    read.read()
    lines = shown([read], 160, rows=3)
    start = lines.index(next(line for line in lines if "known by" in line)) + 1
    states = [("running", "#0"), ("running", "#1"), ("in the queue", "#0")]
    assert [(word in line, name in line) for line, (word, name) in zip(lines[start:], states, strict=False)] == [
        (True, True)
    ] * 3
    assert lines[-1].startswith("3 of 8 programs")


def test_it_goes_on_when_the_server_is_back(fake: FakeServer, page: Json) -> None:
    def came(now_s: float, hits: int) -> None:
        engine = {**page["engines"][0], "now_s": now_s}
        engine["metrics"] = {**engine["metrics"], "unpins": {"hit": hits}}
        fake.pages[PAGE] = 200, {"engines": [engine]}
        read.read()

    read = WatchedServer(fake.url, None, 40)
    came(100.0, 10)
    assert read.engines[0].hits_per_minute is None
    came(130.0, 20)
    assert read.engines[0].hits_per_minute == 20.0
    came(190.0, 30)
    assert read.engines[0].hits_per_minute == 10.0  # the first reading is too old
    fake.pages[PAGE] = 503, {"error": "the engine did not answer within 5 s"}
    read.read()
    assert (read.engines, read.error) == ((), "503 the engine did not answer within 5 s")
    assert any("503" in line for line in shown([read], 160))
    came(10.0, 0)  # a new server
    assert (read.error, read.engines[0].hits_per_minute) == (None, None)
    came(40.0, 1)
    assert read.engines[0].hits_per_minute == 2.0


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [
        (404, {"detail": "Not Found"}, "404 from /continuum/state; is this vLLM with Continuum's middleware"),
        (401, {"error": "Unauthorized"}, "401 Unauthorized; is the API key set (OPENAI_API_KEY, --api-key-env)?"),
        (503, {"error": "this engine runs without the Continuum scheduler"}, "503 this engine runs without"),
        (500, {"detail": {}}, "500 Internal Server Error"),
        (200, {"engines": [{"policy": "old"}]}, "is not of this version of Continuum: Object missing required field"),
        (200, [], "is not of this version of Continuum: Expected `object`"),
    ],
)
def test_a_server_that_cannot_be_shown(fake: FakeServer, status: int, answer: Any, says: str) -> None:
    fake.pages[PAGE] = status, answer
    assert says in refused(ONCE, fake.url)


def test_one_server_of_two_is_shown(fake: FakeServer) -> None:
    done = bench(ONCE, fake.url, "--base-url", "http://127.0.0.1:9/v1")
    assert done.exit_code == 1
    assert "http://127.0.0.1:9/v1: no server answers: " in done.stdout
    assert "static-ttl" in done.stdout


def test_the_key_is_sent(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    succeeded(ONCE, fake.url, "--api-key-env", "THE_KEY")
    assert {seen.headers.get("Authorization") for seen in fake.seen} == {"Bearer secret"}


# ------------------------------------------------------------------------------------------------ in a terminal


class Terminal:
    """A shell in tmux."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux")]
        self.run("new-session", "-d", "-x", "110", "-y", "20", "env -u COLUMNS PS1='$ ' bash --norc")

    def run(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True, timeout=60).stdout

    def wait_for(self, holds: Callable[[str], bool]) -> str:
        for _ in range(600):
            screen = self.run("capture-pane", "-p")
            if holds(screen):
                return screen
            time.sleep(0.1)
        raise AssertionError(repr(screen))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not in this environment")
    made = Terminal(tmp_path)
    yield made
    made.run("kill-server")


def rows(screen: str) -> list[str]:
    return [line for line in screen.splitlines() if "seen-in-top" in line]


@pytest.mark.slow
def test_the_live_view(server: Live, terminal: Terminal) -> None:
    """Beside a server that goes away: rows come and change, and Ctrl-C leaves the terminal clean."""
    with FakeServer("plugin") as other:
        other.pages[PAGE] = 200, state_of()
        urls = f"--base-url {server.server.url} --base-url {other.url}"
        command = f"{sys.executable} -m continuum_bench top {urls} --interval 0.2; echo code $?"
        terminal.run("send-keys", f"clear; {command}", "Enter")
        terminal.wait_for(lambda screen: "waits" in screen)
        server.complete(tokens(64, 1), program_id="seen-in-top")
        terminal.wait_for(lambda screen: ["0%", "held"] in [row.split()[5:7] for row in rows(screen)])
    screen = terminal.wait_for(lambda screen: "no server answers" in screen)
    assert "seen-in-top" in screen
    assert "waits" not in screen
    server.release("seen-in-top")
    # Of a server with many programs, those that ended may be below the screen.
    terminal.wait_for(lambda screen: not any("held" in row for row in rows(screen)))
    terminal.run("send-keys", "C-c")
    screen = terminal.wait_for(lambda screen: "code" in screen.replace("echo code", ""))
    assert "stopped\ncode 130\n" in screen
    assert "seen-in-top" not in screen
