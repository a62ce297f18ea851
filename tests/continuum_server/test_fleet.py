"""Several servers behind the router: what each gets, and that one's death loses no program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from aiohttp import web
from bench_cli import bench
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.fleet import Fleet, replica_configs, replica_file
from continuum_server.front import Front, program_of
from continuum_server.launcher import Server
from continuum_server.ports import answers, hold_port, listens
from continuum_server.server_command import command_of, model_name
from continuum_server.server_config import ServerConfig, ServerError
from continuum_server.virtual.routers import ROUTERS, Arrival, Door
from continuum_traces.forwarding import runner_of, session_to
from continuum_traces.jsonl import write_programs
from continuum_traces.replica_records import read_record
from continuum_traces.schema import Program, ToolCall, Turn
from endpoints import BODIES
from live_server import ends_soon, serving
from waiting import until


def test_each_replica_has_its_own_files_and_port(tmp_path: Path) -> None:
    config = ServerConfig(record=tmp_path / "rec", statistics=tmp_path / "tools.json", host="0.0.0.0", port=8000)
    first, second = replica_configs(config, 2)
    assert (first.port, first.host, first.record) == (0, "127.0.0.1", tmp_path / "rec" / "replica0")
    assert second.record == tmp_path / "rec" / "replica1"
    assert second.statistics == replica_file(tmp_path / "tools.json", 1) == tmp_path / "tools.replica1.json"
    assert first.devices is None


@pytest.mark.parametrize(("visible", "shared"), [(None, ["0,1", "2,3"]), ("4,5,7,6", ["4,5", "7,6"]), ("4,5", None)])
def test_gpus_are_shared_out(visible: str | None, shared: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    config = ServerConfig(engine="gpu", model="m", gpus=2)
    if shared is None:
        with pytest.raises(ServerError, match="2 replicas of 2 GPUs need 4; CUDA_VISIBLE_DEVICES has 2"):
            replica_configs(config, 2)
        return
    configs = replica_configs(config, 2)
    assert [one.devices for one in configs] == shared
    assert [command_of(one, 8000)[1]["CUDA_VISIBLE_DEVICES"] for one in configs] == shared


def test_a_port_that_is_held_is_nobody_elses_but_a_server_of_ours_can_listen_there() -> None:
    with hold_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with socket.socket() as plain, pytest.raises(OSError, match="Address already in use"):
            plain.bind(("127.0.0.1", port))
        assert not listens(os.getpid(), port)
        with socket.create_server(("127.0.0.1", port)):
            assert listens(os.getpid(), port)
            with pytest.raises(ServerError, match=f"port {port} of 127.0.0.1 is taken"):
                hold_port("127.0.0.1", port)


class Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


@pytest.mark.slow
def test_a_stranger_who_answers_is_not_our_server(tmp_path: Path) -> None:
    """Somebody who took the port between our look and vLLM's bind answers /health; our server is not up then."""
    server = Server(ServerConfig(kv_blocks=1200), tmp_path / "log")
    try:
        with ThreadingHTTPServer(("127.0.0.1", server.port), Stranger) as stranger:
            threading.Thread(target=stranger.serve_forever, daemon=True).start()
            assert answers(f"http://127.0.0.1:{server.port}/health")
            with pytest.raises(ServerError, match=r"the server ended by itself .*log ends:\n(.*\n)*.*in use"):
                server.wait_until_healthy()
            stranger.shutdown()
    finally:
        server.kill()


def test_a_conversation_without_an_id_is_known_by_its_opening() -> None:
    def named(data: Any, **headers: str) -> tuple[str | None, bool]:
        return program_of(headers, json.dumps(data).encode())

    system, ask, other = (
        {"role": role, "content": text} for role, text in (("system", "s"), ("user", "a"), ("user", "b"))
    )
    first = named({"messages": [system, ask]})
    assert first[0] is not None
    assert named({"messages": [system, ask, {"role": "assistant", "content": "x"}, other]}) == first
    assert named({"messages": [system, other]}) != first
    assert named({"input": "text"})[0] != named({"input": "other"})[0]
    assert [named(data) for data in ({"prompt": "x"}, ["x"])] == [(None, False)] * 2
    assert program_of({}, b"{") == (None, False)
    assert named({"vllm_xargs": {"program_id": "p", "is_last_step": 1}}) == ("p", True)
    assert named({"messages": [ask]}, **{"thread-id": "t", "x-dynamo-session-final": "true"}) == ("t", True)


async def sent_raw(port: int, method: str, target: str) -> tuple[int, bytes]:
    """Send a request line as it is. Return the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def started(runner: web.AppRunner) -> int:
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/a%2Fb?c=%20d", "/v1/a%2Fb?c=%20d"),
        ("http://other.example:8/v1/a%2Fb?c=%20d", "/v1/a%2Fb?c=%20d"),
    ],
)
def test_a_target_with_a_host_is_forwarded_without_it(target: str, path: str) -> None:
    """The router's answers; its address of the server is not shown."""
    seen: list[str] = []

    async def server(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response({"engines": [{"of": request.method}]})

    async def forwarded() -> None:
        behind = runner_of(server)
        address = f"http://127.0.0.1:{await started(behind)}"
        front = Front("sticky", [address])
        async with session_to(10.0) as front._session:
            runner = runner_of(front._answer)
            port = await started(runner)
            assert await sent_raw(port, "GET", target) == (200, b'{"engines": [{"of": "GET"}]}')
            assert seen == [path]
            assert await sent_raw(port, "HEAD", "/continuum/state") == (200, b"")
            status, health = await sent_raw(port, "GET", "/health")
            assert (status, json.loads(health)["replicas"]) == (200, [{"name": "replica0", "serving": True}])
            await runner.cleanup()
        await behind.cleanup()

    asyncio.run(forwarded())


def test_requests_without_an_id_are_forgotten_when_they_are_answered() -> None:
    door = Door(ROUTERS["cache-aware"](), 2)
    for number in range(100):
        arrival = Arrival(f"#{number}", 10, is_last=True)
        door.answered(door.send(arrival), arrival)
    assert [replica.known for replica in door.replicas.values()] == [{}, {}]


def trace_of(folder: Path) -> Path:
    call = (ToolCall("ls", 0.4),)
    turns = (Turn(1000, 150, tool_calls=call), *[Turn(200, 150, tool_calls=call)] * 4, Turn(50, 10))
    path = folder / "small.jsonl.gz"
    write_programs(path, [Program(f"p{i}", turns) for i in range(8)])
    return path


@pytest.mark.slow
def test_ids_keys_and_releases_pass_on_every_route(tmp_path: Path) -> None:
    """Each program stays on one server, however it is named; a release finds the server; ids belong to a key."""
    record, ways = tmp_path / "record", ("X-Session-ID", "thread-id")
    config = ServerConfig(
        **{"port": 0, "drain_s": 5, "record": record, "kv_blocks": 2000, "max_model_len": 16_000},
        **{"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}},
        vllm_arguments=("--api-key", "key-a", "key-b"),
    )
    mine, other = ({"Authorization": f"Bearer key-{name}"} for name in "ab")
    with serving(Fleet(config, 2, "sticky", tmp_path / "logs")) as running, httpx.Client(base_url=running.url) as http:
        names = []
        for route, body in BODIES.items():
            assert http.post(f"/v1/{route}", json=body("x")).status_code == 401
            for way in ways:
                names.append(name := f"{route} {way}".replace("/", " "))
                for _ in range(3):
                    sent = {"model": model_name(config), **body(f"{name}: {'a few words more ' * 20}")}
                    answer = http.post(f"/v1/{route}", json=sent, headers={way: name, **mine}, timeout=60.0)
                    assert answer.status_code == 200, answer.text
        engines = http.get("/continuum/state", headers=mine).json()["engines"]
        assert sorted(row["program_id"] for engine in engines for row in engine["program_list"]) == sorted(names)
        paths = [f"/continuum/programs/{quote(name)}/release" for name in names]
        released = [[http.post(path, headers=key).json()["released"] for key in (other, mine, mine)] for path in paths]
        assert released == [[False, True, False]] * len(names)
        assert http.post(paths[0]).status_code == 401
        assert running.router is not None
        os.kill(running.router.process.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match=r"the router was killed by signal 9; see .*/logs/router.log"):
            running.wait(60.0)
    places: dict[str, list[int | None]] = {}
    for event in read_record(record):
        if event.event == "finish":
            places.setdefault(event.program_id, []).append(event.replica)
    assert sorted(place.partition(":")[2] for place in places) == sorted(names)  # within a key
    assert {(len(each), len(set(each))) for each in places.values()} == {(3, 1)}
    assert {each[0] for each in places.values()} == {0, 1}


def health(fleet: Fleet) -> tuple[int, str, list[bool]]:
    answer = httpx.get(f"{fleet.url}/health")
    return answer.status_code, answer.json()["status"], [one["serving"] for one in answer.json()["replicas"]]


@pytest.mark.slow
def test_a_killed_replica_loses_no_program(tmp_path: Path) -> None:
    """kill -9 of a server and its engine in the middle: all programs complete, some turns are computed again."""
    record, said = tmp_path / "record", list[str]()
    config = ServerConfig(
        **{"port": 0, "drain_s": 5, "record": record, "statistics": tmp_path / "tools.json", "kv_blocks": 2000},
        **{"max_model_len": 16_000, "policy": "static-ttl", "policy_options": {"ttl_s": 5.0}},
        emulated=EmulatedSettings(time_scale=2.0),
    )
    with serving(Fleet(config, 2, "sticky", tmp_path / "logs", said.append)) as running:
        assert running.router is not None
        assert health(running) == (200, "serving", [True, True])
        leaders = {server.process.pid for server in (*running.servers, running.router)}

        def kill_in_the_middle() -> None:
            until(lambda: sum(event.event == "finish" and event.replica == 1 for event in read_record(record)) >= 4)
            os.killpg(running.servers[1].process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_in_the_middle)
        killer.start()
        given = (trace_of(tmp_path), "--base-url", f"{running.url}/v1", "--out", tmp_path / "out")
        done = bench("replay --jps 8 --no-report", *given, "--scheduler-records", record)
        killer.join()
        assert done.exit_code == 0, done.output
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.1)
        assert said == [f"replica1 was killed by signal 9; see {tmp_path}/logs/replica1.log; replicas left: 1"]
        assert health(running) == (200, "degraded", [True, False])
        os.killpg(running.servers[0].process.pid, signal.SIGKILL)
        until(lambda: health(running) == (503, "dead", [False, False]))
        with pytest.raises(ServerError, match="all replicas have ended"):
            running.wait(60.0)
    assert ends_soon(leaders) == []
    (row,) = json.loads((tmp_path / "out" / "summary.json").read_text())["policies"].values()
    assert (row["programs"], row["programs_finished"], row["programs_failed"]) == (8, 8, 0)
    starts = [event for event in read_record(tmp_path / "out" / "static-ttl-seed0") if event.event == "start"]
    moved = {event.program_id for event in starts if event.replica == 1}
    anew = [e for e in starts if e.program_id in moved and e.replica == 0 and e.turn > 0 and not e.hit_tokens]
    assert anew, "no turn of a program of the dead replica was computed again"
