"""What goes wrong between a load generator and a server, over real sockets: what is counted, said and kept."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from bench_cli import bench, refused
from continuum_bench.errors import BenchError
from continuum_bench.live.driver import pause_s
from continuum_bench.live.endpoint import Endpoint, probe_server, wait_for_server
from continuum_bench.live.http import RequestFailed, StreamingClient, open_session, retry_after_s
from continuum_server.ports import hold_port
from continuum_traces.json_io import read_json
from continuum_traces.records import read_arrivals
from continuum_traces.records.run_dir import read_manifest
from fake_server import FakeServer, Handler, as_event, good, streaming
from small_replays import (
    analyzed,
    replay,
    replayed,
    run_of,
    started,
    trace_of,
    turns_of,
)
from waiting import until


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("plugin", "server 0a1b2c3d (vLLM 0.0), model m, policy fake"),
        ("vllm", "a server that `continuum-bench serve` did not start (vLLM 0.0), model m, no policy named"),
    ],
)
def test_it_says_whose_server_is_measured(tmp_path: Path, kind: str, said: str) -> None:
    """A port that `serve` was refused belongs to somebody else's server, which answers all the same."""
    done = replayed(tmp_path, good, kind=kind)
    assert done.said.index(said) < done.said.index("1 program at")
    assert said in read_manifest(done.run).notes


async def reset(request: web.Request, number: int) -> Any:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


TOKEN = b'data: {"choices": [{"text": "x"}]}\n\n'


def answering(
    *events: bytes, status: int = 200, apart_s: float = 0.0, stays_s: float = 0.0, aborts: bool = False
) -> Handler:
    """A handler that sends these events, goes on for so long, and ends the answer, or the connection."""

    async def handler(request: web.Request, number: int) -> Any:
        if status != 200:
            return web.Response(status=status, text="no")
        response = await streaming(request)
        for event in events:
            await response.write(event)
            await asyncio.sleep(apart_s)
        await asyncio.sleep(stays_s)
        if aborts:
            await reset(request, number)
        return response

    return handler


BROKEN = [
    (answering(b"data: {nonsense\n\n"), "invalid-json", 4),
    (reset, "connection", 4),
    (answering(TOKEN, aborts=True), "stream", 4),
    (answering(TOKEN), "stream", 4),  # a clean end, but not of the answer
    (answering(*[TOKEN] * 100, apart_s=0.1), "timeout", 4),
    (answering(status=500), "http-500", 4),
    (answering(status=400), "http-400", 2),
]


@pytest.mark.parametrize(("handler", "kind", "tries"), BROKEN)
def test_programs_that_cannot_go_on_stay_in_the_count(tmp_path: Path, handler: Handler, kind: str, tries: int) -> None:
    done = replayed(tmp_path, handler, "--request-limit-s", 1, "--retries", 1, programs=2, code=1)
    assert len(done.server.bodies) == tries
    assert f"{tries} x {kind}; {tries - 2} tries again, 2 programs failed" in done.said
    assert all(kind in record.error for record in done.turns)
    found = analyzed(done.out)
    assert (found["errors_by_kind"], found["programs_failed"], found["programs"]) == ({kind: tries}, 2, 2)


def answers_once(sent: bytes) -> str:
    """The URL of a listener that sends these bytes to the first that comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as accepted:
            accepted.recv(2**16)
            accepted.sendall(sent)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no OpenAI-compatible server answers: SSH-2.0-OpenSSH_9.6\n"),
        (b'{"data": null}', "no OpenAI-compatible server answers: /models: expected a list in `data`, found None\n"),
        (b"[" * 100_000, "no OpenAI-compatible server answers: "),
        (b'{"data": []}', "serves no model\n"),
    ],
)
def test_something_else_is_there(tmp_path: Path, sent: bytes, said: str) -> None:
    url = answers_once(sent if sent.startswith(b"SSH") else b"HTTP/1.0 200 OK\r\n\r\n" + sent)
    assert said in refused("replay", trace_of(tmp_path), "--base-url", url, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ((404, {}), "404 Not Found from /models; does the URL end in /v1? If the server has no list of models"),
        ((405, {}), "405 Method Not Allowed from /models"),
        ((501, {}), "501 Not Implemented from /models"),
        ((200, {"data": []}), "serves no model"),
    ],
)
def test_a_server_need_not_list_its_models_if_one_is_named(page: tuple[int, Any], said: str) -> None:
    with FakeServer() as server:
        server.pages["/v1/models"] = page
        with pytest.raises(BenchError, match=re.escape(said)):
            probe_server(server.url, None)
        assert probe_server(server.url, None, "mine").models == ("mine",)


def test_a_replay_waits_for_a_server_that_starts_later(tmp_path: Path) -> None:
    """A gateway says 503 until its server is up; before the gateway there is nothing at all."""
    with hold_port("127.0.0.1", 0) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        with pytest.raises(BenchError, match=r"no server answered within 0 s \(--wait\): .*refused"):
            wait_for_server(url, None, longest_s=0.0)
    with FakeServer() as server:
        server.pages["/v1/models"] = 503, {}
        with pytest.raises(BenchError, match=r"no server answered within 0 s .*: 503 Service Unavailable"):
            wait_for_server(server.url, None, longest_s=0.0)
        waiting = threading.Thread(target=wait_for_server, args=(server.url, None))
        waiting.start()
        until(lambda: len(server.seen) > 2)
        assert waiting.is_alive()
        del server.pages["/v1/models"]
        waiting.join(60)
        assert not waiting.is_alive()
    assert "waiting" not in replayed(tmp_path, good, "--wait").said


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_an_answer_ends_the_wait_whatever_it_says(status: int) -> None:
    with FakeServer() as server:
        server.pages["/v1/models"] = status, "no JSON"
        wait_for_server(server.url, None, longest_s=60.0)
        assert len(server.seen) == 1


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_named_model_does_not_hide_an_error(status: int) -> None:
    with FakeServer() as server:
        server.pages["/v1/models"] = status, {}
        with pytest.raises(BenchError, match=f"{status} "):
            probe_server(server.url, None, "mine")


@pytest.mark.parametrize("engines", [5, [5], {"a": 1}])
def test_odd_facts_of_a_server_are_left_out(engines: Any) -> None:
    """Every question gets the same answer."""
    answer = {"data": [{"id": "m"}], "engines": engines, "version": 5, "emulated": 5, "server": [1]}
    with FakeServer() as server:
        for path in ("/v1/models", "/version", "/continuum/state", "/continuum/engine"):
            server.pages[path] = 200, answer
        assert probe_server(server.url, None) == Endpoint(server.url, ("m",))


def test_a_connection_that_takes_too_long_is_a_connection_s_failure() -> None:
    """A listener that accepts nobody: the kernel lets two wait, and drops the third's first packet."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())

        async def post() -> None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=0.2)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1/completions"
                await StreamingClient(session, lambda: 0.0, 60.0).post(url, {}, {})

        with pytest.raises(RequestFailed, match="connection: Connection timeout"):
            asyncio.run(post())


# ------------------------------------------------------------------------------------------------- storms


async def storm(request: web.Request, number: int) -> Any:
    """The first six requests are refused. Answers have no token counts."""
    if number <= 6:
        return web.Response(status=429, text="busy", headers={"Retry-After": "1"})
    return await good(request, number, usage=False)


def test_a_429_storm_waits_as_long_as_the_server_asks(tmp_path: Path) -> None:
    done = replayed(tmp_path, storm, "--arrivals", "concurrency:3", programs=3)
    assert "6 x http-429; 6 tries again, 0 programs failed" in done.said
    by_program: dict[str, list[Any]] = {}
    for seen in done.server.asked:
        by_program.setdefault(seen.body["vllm_xargs"]["program_id"], []).append(seen)
    for first, second, third, *_ in by_program.values():
        assert first.body == second.body == third.body
        assert second.time_s - first.time_s >= 1.0
        assert third.time_s - second.time_s >= 1.0  # asked for 1 s; the second backoff alone is as long
    assert {record.cached_tokens for record in done.turns} == {None}
    firsts = [record for record in done.turns if record.turn == 0]
    assert [record.failed_tries for record in firsts] == [("http-429", "http-429")] * 3
    assert all(record.finish_s - record.due_s >= 2.0 for record in firsts)  # latency counts from the first intention


async def one_short(request: web.Request, number: int) -> Any:
    """The first answer lacks a token."""
    stream, body = await streaming(request), await request.json()
    count = body["max_tokens"] - (number == 1)
    choice = {"text": "x", "token_ids": [1] * count, "finish_reason": "length"}
    counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
    for event in ({"choices": [choice]}, {"choices": [], "usage": counts}, "[DONE]"):
        await stream.write(as_event(event))
    return stream


def test_an_answer_that_lacks_one_token_is_a_failed_try_that_the_table_tells(tmp_path: Path) -> None:
    done = replayed(tmp_path, one_short)
    assert [turn.failed_tries for turn in done.turns] == [("short",), (), ()]
    notes = read_json(done.run / "engine.json")["notes"]
    assert "1 answer ended too early, 1 token before the length that was asked for: failed tries" in notes, notes


NOON, LATER = "Sat, 28 Nov 2026 12:00:00 GMT", "Sat, 28 Nov 2026 12:00:20 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": LATER, "Date": NOON}, 20.0),
        ({"Retry-After": NOON, "Date": LATER}, 0.0),
        ({"Retry-After": LATER}, 5.0),  # by this machine's clock
        ({"Retry-After": "Saturday, 28-Nov-26 12:00:20 GMT", "Date": NOON}, 20.0),  # RFC 850
        ({"Retry-After": "Sat Nov 28 12:00:20 2026", "Date": NOON}, 20.0),  # asctime
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "1"}, 1.0),
        *[({"Retry-After": nonsense}, None) for nonsense in ("", "soon", "-3", "nan", "99, 1")],
        ({}, None),
    ],
)
def test_when_a_server_asks_to_come_back(headers: dict[str, str], seconds: float | None) -> None:
    at = datetime(2026, 11, 28, 12, 0, 15, tzinfo=UTC).timestamp()
    assert retry_after_s(headers, lambda: at) == seconds


@pytest.mark.parametrize(
    ("status", "asked", "again"),
    [
        *((503, None, True), (503, "false", False), (400, None, False), (400, "true", True), (429, "FALSE", False)),
        *((status, None, True) for status in (408, 409, 429, 500, 529)),
        *((status, None, False) for status in (401, 404, 407, 410, 422, 499)),
    ],
)
def test_a_server_that_says_whether_to_try_again(status: int, asked: str | None, again: bool) -> None:
    headers = {"retry-after-ms": "20", **({} if asked is None else {"x-should-retry": asked})}

    async def refuse(request: web.Request, number: int) -> Any:
        return web.Response(status=status, headers=headers)

    async def post(url: str) -> RequestFailed:
        async with open_session(url) as session:
            with pytest.raises(RequestFailed) as failed:
                await StreamingClient(session, lambda: 1.0, 60.0).post(f"{url}/completions", {}, {})
            return failed.value

    with FakeServer("anything", handler=refuse) as server:
        failed = asyncio.run(post(server.url))
    assert (failed.again, failed.retry_after_s) == (again, 0.02)


@pytest.mark.parametrize(
    ("attempt", "asked_s", "seconds"),
    [
        *((0, None, 2.0), (1, None, 4.0), (3, None, 16.0), (0, 1.9, 2.0), (0, 2.1, 2.1), (3, 15.0, 16.0)),
        *((0, 599.0, 599.0), (0, 600.0, 600.0), (0, 601.0, 600.0), (0, float("inf"), 600.0), (9, 601.0, 1024.0)),
    ],
)
def test_pauses_double_and_are_as_long_as_the_server_asks(attempt: int, asked_s: float | None, seconds: float) -> None:
    assert pause_s(attempt, 2.0, asked_s) == seconds


EMPTY = b'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'
COUNTED = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": %d}}\n\n'


@pytest.mark.parametrize(
    ("events", "failure"),
    [
        ((EMPTY,), "stream: ended without a token"),
        ((EMPTY, COUNTED % 0), "stream: ended without a token"),
        ((EMPTY, COUNTED % 1), None),  # of a token that has no text
        ((TOKEN, EMPTY), None),
    ],
)
def test_an_answer_has_a_token(events: tuple[bytes, ...], failure: str | None) -> None:
    async def post(url: str) -> str | None:
        async with open_session(url) as session:
            try:
                await StreamingClient(session, lambda: 1.0, 60.0).post(f"{url}/completions", {}, {})
            except RequestFailed as error:
                return str(error)
        return None

    with FakeServer("anything", handler=answering(*events)) as server:
        assert asyncio.run(post(server.url)) == failure


class Deaf(FakeServer):
    """Hangs up when it is asked to release a program."""

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.endswith("/release"):
            assert request.transport is not None
            request.transport.abort()
        return await super()._serve(request)


def test_a_release_that_failed_is_counted(tmp_path: Path) -> None:
    with Deaf("plugin", handler=answering(stays_s=30)) as server:
        done = replay(trace_of(tmp_path, 2), server.url, tmp_path / "out", "--program-limit-s", 0.2)
    assert "2 x program-limit, 2 x release" in done.stderr


# --------------------------------------------------------------------------------------- broken connections


def test_a_request_that_met_a_closing_connection_is_sent_again(tmp_path: Path) -> None:
    """The server takes one request on a connection, says that it keeps it, and closes it at the next one."""
    used: set[Any] = set()

    async def closes_idle(request: web.Request, number: int) -> Any:
        if request.transport in used:
            return await reset(request, number)
        used.add(request.transport)
        return await good(request, number)

    done = replayed(tmp_path, closes_idle, "--retries", 0, programs=3)
    assert len(done.server.bodies) > len(used) == 9
    assert {record.failed_tries for record in done.turns} == {()}


def test_an_error_in_an_open_stream_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continuum_bench.live.http.READ_EVERY_S", 0.2)
    error = b'data: {"error": {"message": "EngineDeadError"}}\n\n'  # as if an engine dies: the stream stays open
    later = answering(TOKEN, error, apart_s=0.1, stays_s=60)
    done = replayed(tmp_path, later, "--request-limit-s", 30, "--retries", 0, code=1)
    assert "1 x stream" in done.said
    assert "EngineDeadError" in done.turns[0].error


def test_answers_read_along_lose_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continuum_bench.live.http.READ_EVERY_S", 0.01)

    async def in_pieces(request: web.Request, number: int) -> Any:
        """A good answer, slowly; its lines are cut in two."""
        tokens = range((await request.json())["max_tokens"])
        lines = [b'data: {"choices": [{"text": "x", "token_ids": [%d]}]}\n\n' % (1000 + token) for token in tokens]
        pieces = [piece for line in lines for piece in (line[:20], line[20:])]
        return await answering(*pieces, b"data: [DONE]\n\n", apart_s=0.005)(request, number)

    server = replayed(tmp_path, in_pieces).server
    first, second = server.bodies[0]["prompt"], server.bodies[1]["prompt"]
    assert second[: len(first) + 20] == [*first, *range(1000, 1020)]


@pytest.mark.parametrize(("events", "limit_s"), [((), 0.2), ((TOKEN,), 5.0)])
def test_a_program_given_up_is_recorded_and_let_go_by_the_server(
    events: tuple[bytes, ...], limit_s: float, tmp_path: Path
) -> None:
    """An answer that had begun has its first token in the record: its turn did not wait until the end."""
    handler = answering(*events, stays_s=30)
    done = replayed(tmp_path, handler, "--program-limit-s", limit_s, programs=2, kind="plugin", code=1)
    assert sorted(done.server.released) == ["p0", "p1"]
    found = analyzed(done.out)
    assert (found["errors_by_kind"], found["programs_failed"]) == ({"program-limit": 2}, 2)
    assert [record.first_token_s is not None for record in turns_of(done.out)] == [bool(events)] * 2


# -------------------------------------------------------------------------------------------------- the disk


def test_a_full_disk_is_said_and_what_was_recorded_stays(tmp_path: Path) -> None:
    with FakeServer("vllm", handler=good) as server:
        trace, out, constant = trace_of(tmp_path, 30), tmp_path / "out", ("--arrivals", "constant")
        room = 9_000  # bytes of any one file: enough for the manifest, not for 90 turns
        full = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))}
        run = started(trace, server.url, out, *constant, **full)
        _, stderr = run.communicate(timeout=300)
        assert run.returncode == 2
        (said,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
        assert "turns.jsonl: cannot write: File too large; earlier records are kept" in said
        assert "Traceback" not in stderr
        assert 10 < len(turns_of(out)) < 90
        finished = sum(record.is_last for record in turns_of(out))
        assert analyzed(out)["programs_finished"] == finished > 0
        again = replay(trace, server.url, out, *constant)
    assert again.exit_code == 0, again.output
    assert f"{run_of(out)}: was stopped before its end; it is played from its beginning" in again.stderr
    assert (analyzed(out)["programs_finished"], len(turns_of(out))) == (30, 90)


# ------------------------------------------------------------------------------------ stopped, played again


class Stuck:
    """Answers the first program, and the first turn of each other; what comes then is held until ``goes_on`` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.held = 0
        self._turns: Counter[str] = Counter()

    async def __call__(self, request: web.Request, number: int) -> Any:
        program = (await request.json())["vllm_xargs"]["program_id"]
        self._turns[program] += 1
        if program != next(iter(self._turns)) and self._turns[program] > 1:
            self.held += 1
            while not self.goes_on.is_set():
                await asyncio.sleep(0.01)
        return await good(request, number)


@pytest.mark.parametrize(
    ("how", "processes"),
    [
        (signal.SIGINT, 1),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_stopped_can_be_analysed_and_is_played_from_its_beginning(
    tmp_path: Path, how: int, processes: int
) -> None:
    """Of two programs at a time: one has finished, another has begun then, and two are in the middle of their turns."""
    out, stuck = tmp_path / "out", Stuck()
    with FakeServer("plugin", handler=stuck) as server:
        words = (trace_of(tmp_path, 5), server.url, out, "--arrivals", "concurrency:2", "--processes", processes)
        run = started(*words, start_new_session=True)
        until(lambda: stuck.held == 2)
        os.kill(run.pid, how)
        _, stderr = run.communicate(timeout=300)
        stuck.goes_on.set()
        folder = run_of(out)
        finished = {record.program_id for record in turns_of(out) if record.is_last}
        seen = {arrival.program_id for arrival in read_arrivals(folder)}
        found = analyzed(out)
        assert (found["programs_finished"], found["programs"], set(found["unfinished"])) == (1, 3, seen - finished)
        if how == signal.SIGINT:
            assert run.returncode == 130
            assert f"stopped; 0 of 1 runs are complete; the same command with --out {out} plays the others" in stderr
            assert "Traceback" not in stderr
            stopped = {record.program_id for record in turns_of(out) if record.error == "stopped: the run ended"}
            assert stopped == seen - finished <= set(server.released)
        before = len(server.bodies)
        again, complete, other = replay(*words), replay(*words), replay(*words, "--retries", 1)
        played = Counter(body["vllm_xargs"]["program_id"] for body in server.bodies[before:])
    assert (again.exit_code, complete.exit_code) == (0, 0), again.output
    assert "complete already" in complete.stderr
    assert "holds another run: engine_options.retries differs: 3 against 1 now; choose another --out" in other.stderr
    assert played == {f"p{i}": 3 for i in range(5)}
    assert f"{folder}: was stopped before its end; it is played from its beginning" in again.stderr
    assert analyzed(out)["programs_finished"] == 5
    assert (len(turns_of(out)), len(list(read_arrivals(folder)))) == (15, 5)
    workload, notes = read_manifest(folder).workload, read_manifest(folder).notes
    assert ("generator: 2 processes" in notes, workload.arrivals) == (processes == 2, "concurrency:2")
    assert min(record.due_s for record in turns_of(out)) < 1.0  # a clock of its own


def test_a_policy_that_raises_during_a_run_has_no_result(tmp_path: Path) -> None:
    """The run says so, and ``compare --fail-if`` refuses it. Earlier exceptions of the same server do not count."""
    trace = trace_of(tmp_path, 1)
    with FakeServer("plugin", handler=good) as server:
        assert replay(trace, server.url, tmp_path / "before").exit_code == 0

        async def raises(request: web.Request, number: int) -> web.StreamResponse:
            server.plugin_errors += 1
            return await good(request, number)

        server.handler = raises
        done = replay(trace, server.url, tmp_path / "out")
    assert done.exit_code == 1
    assert "warning: fake, seed 0: the server caught 3 exceptions in its policy" in done.stderr
    assert read_json(run_of(tmp_path / "out") / "engine.json")["plugin_errors"] == 3
    gate = ("--fail-if", "programs_failed > 0", "--point-estimate")
    assert bench("compare", tmp_path / "before", *gate).exit_code == 0
    said = f"{run_of(tmp_path / 'out')}: the policy raised 3 exceptions during this run"
    assert said in refused("compare", tmp_path / "out", *gate)
