"""``continuum-bench top``: its tables from a real engine's state, its messages, and its screen in a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from bench_cli import bench, refused, succeeded
from continuum_bench.top import Server, view
from continuum_server.policy.facts import Hold
from continuum_server.vllm_plugin.online import Online
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from fake_server import FakeServer, Json
from live_server import Live, tokens
from nano import build
from rich.console import Console
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from waiting import until

PAGE = "/continuum/state"
LONG = "agent-[red]-" + "x" * 60
"""An id that is longer than its column, and would be a colour to rich."""
SHORT = LONG[:35] + "…"


@pytest.fixture(scope="module")
def page() -> Json:
    """The state page of a real scheduler: a program runs, one waits, one is held for a minute, one idles, one ended."""
    scheduler, _ = build([], "static-ttl", {"ttl_s": 60.0}, scheduler_type=ProgramScheduler)
    online, table, now_s = Online(scheduler, Settings("static-ttl")), scheduler.table, scheduler.clock()
    for name in ("waits", "idle", "ended", "held", LONG):
        sampling = SamplingParams(max_tokens=1, extra_args={"program_id": name})
        scheduler.add_request(Request(name, list(range(100)), sampling, None))
    for name, hit_tokens in (("idle", 0), ("ended", 100), ("held", 80), (LONG, 5)):
        turn = table.turn(name)
        turn.is_last = name == "ended"
        table.start(turn, now_s, hit_tokens, block_size=16)
        if name != LONG:
            table.finish(turn, now_s, 12_345, 20, "ls")
        if name == "held":
            table.pin(turn, now_s, Hold(60.0), [1])
    state = json.loads(online.call("state", "{}"))
    scheduler.running, table.pins = [], {}
    online.close()
    return {"engines": [state]}


@pytest.fixture
def fake(page: Json) -> Iterator[FakeServer]:
    with FakeServer("plugin") as found:
        found.pages[PAGE] = 200, page
        yield found


ONCE = "top --once --base-url"


def test_a_table_says_what_each_program_does(fake: FakeServer) -> None:
    done = succeeded(ONCE, fake.url)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert " ".join(lines[0]) == "server policy pool used held pins running queue hit tokens errors"
    assert lines[1][1:] == ["static-ttl", "2%", "2%", "1", "0", "5", "-", "none"]
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
    assert engine["pins_held"] == 1


def shown(servers: list[Server], width: int, rows: int = 40) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(view(servers, width, rows))
    return captured.get().splitlines()


@pytest.fixture
def read(fake: FakeServer) -> Server:
    return Server(fake.url, None, 40)


@pytest.mark.parametrize("width", [20, 60, 90])
def test_every_width_shows_ids_and_states(read: Server, width: int) -> None:
    read.read()
    lines = shown([read], width)
    assert max(map(len, lines)) <= width
    for word in ("running", "in the queue" if width > 20 else "i", "held"):
        assert any(word in line for line in lines), lines
    assert any("tag" in line for line in lines) == (width >= 90)


def test_what_fits_is_shown_of_all_engines(fake: FakeServer, page: Json, read: Server) -> None:
    """Running programs of every engine come before any that waits."""
    fake.pages[PAGE] = 200, {"engines": page["engines"] * 2}
    read.read()
    *_, first, second, third, last = shown([read], 160, rows=3)
    assert ["running" in first, "#0" in first, "running" in second, "#1" in second] == [True] * 4
    assert ["in the queue" in third, "#0" in third] == [True] * 2
    assert last.startswith("3 of 8 programs")


def test_it_goes_on_when_the_server_is_back(fake: FakeServer, page: Json, read: Server) -> None:
    read.read()
    fake.pages[PAGE] = 503, {"error": "the engine did not answer within 5 s"}
    read.read()
    assert (read.engines, read.error) == ((), "503 the engine did not answer within 5 s")
    assert any("503" in line for line in shown([read], 160))
    fake.pages[PAGE] = 200, page
    read.read()
    assert (read.error, len(read.engines)) == (None, 1)


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [
        (404, {"detail": "Not Found"}, "404 from /continuum/state; is this vLLM with Continuum's middleware"),
        (401, {"error": "Unauthorized"}, "401 Unauthorized; is the API key set (OPENAI_API_KEY, --api-key-env)?"),
        (500, {"detail": {}}, "500 Internal Server Error"),
        (200, {"engines": [{"policy": "old"}]}, "is not of this version of Continuum: Object missing required field"),
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


def in_terminal(*words: str) -> tuple[subprocess.Popen[bytes], list[str]]:
    """The command in a terminal of its own, and what it writes there."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "110", "LINES": "20", "TERM": "xterm"}
    command = [sys.executable, "-m", "continuum_bench", *words]
    run = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | size)
    os.close(theirs)
    shown: list[str] = []

    def read() -> None:
        with suppress(OSError):  # the terminal ends with the process
            while True:
                shown.append(os.read(ours, 2**16).decode(errors="replace"))

    threading.Thread(target=read, daemon=True).start()
    return run, shown


@pytest.mark.slow
def test_the_live_view(server: Live, page: Json) -> None:
    """Beside a server that goes away: rows come and change, and Ctrl-C leaves the terminal clean."""

    def screen() -> str:
        """The last one that is complete."""
        return "".join(shown).split("\x1b[H")[-2:][0]

    def row() -> list[str]:
        return next((line.split() for line in screen().splitlines() if "seen-in-top" in line), [])

    with FakeServer("plugin") as other:
        other.pages[PAGE] = 200, page
        urls = ["--base-url", server.server.url, "--base-url", other.url]
        run, shown = in_terminal("top", *urls, "--interval", "0.2")
        until(lambda: "waits" in screen())
        server.complete(tokens(64, 1), program_id="seen-in-top")
        until(lambda: row()[5:7] == ["0%", "held"])
    until(lambda: "no server answers" in screen())
    assert row()
    assert "waits" not in screen()
    server.release("seen-in-top")
    # Of a server with many programs, those that ended may be below the screen.
    until(lambda: "held" not in row())
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    until(lambda: "".join(shown).rpartition("\x1b[?1049l")[2].strip() == "stopped")  # what was there before is back
