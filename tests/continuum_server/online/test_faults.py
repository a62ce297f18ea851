"""Servers that die, stop, or are told to do what they cannot."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.records import read_events
from continuum_traces.records.run_dir import PREVIEW_EVENTS
from live_server import ends_soon, live, processes_of, serve_command, sessions_of, tokens
from waiting import until

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {"kv_blocks": 1200, "max_model_len": 16_000, "emulated": EmulatedSettings(time_scale=20.0)}


def test_kill_and_restart_keeps_ids_turns_and_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops saves its statistics, and the file of the papers' preview where ``RUN_OUTPUT_DIR`` says. One
    that is killed loses only what is not recorded yet."""
    statistics = tmp_path / "statistics.json"
    config = {**CONFIG, "policy": "continuum", "statistics": statistics}
    prompts = [[*tokens(500, 0), *tokens(100 * turn, 1)] for turn in range(4)]  # each continues the one before
    with live(tmp_path, **config) as server:
        for turn in range(2):
            server.complete(prompts[turn], program_id="p", this_func_call="ls")
    assert json.loads(statistics.read_text())
    with live(tmp_path, **config) as server:
        tools = server.state()["tools"]
        assert tools  # learned by the engine before
        server.complete(prompts[2], program_id="p", this_func_call="ls")
        until(lambda: server.events("p")[-1].turn == 2)
        server.server.kill()
    monkeypatch.setenv("RUN_OUTPUT_DIR", str(tmp_path / "preview"))
    with live(tmp_path, **config) as server:
        assert server.state()["tools"] == tools
        server.complete(prompts[3], program_id="p")
    arrivals = [event.turn for event in read_events(tmp_path / "record") if event.event == "arrive"]
    assert arrivals == [0, 1, 2, 3]
    entries = json.loads((tmp_path / "preview" / PREVIEW_EVENTS).read_text())["p"]
    assert sum("Request_arrival_time" in entry for entry in entries) == 4


def test_each_data_parallel_rank_keeps_its_own_state_and_record(tmp_path: Path) -> None:
    config = {**CONFIG, "policy": "static-ttl", "policy_options": {"ttl_s": 60.0}, "data_parallel_size": 2}
    with live(tmp_path, **config) as server:
        for number in range(4):
            server.complete(tokens(200, number), program_id=f"p{number}")
        engines = httpx.get(f"{server.server.url}/continuum/state").json()["engines"]
        held = [{row["program_id"] for row in engine["program_list"] if row["state"] == "held"} for engine in engines]
        assert len(held) == 2
        assert set.union(*held) == {"p0", "p1", "p2", "p3"}
        assert all(server.release(f"p{number}") for number in range(4))
    for folder, programs in ((tmp_path / "record", held[0]), (tmp_path / "record" / "rank1", held[1])):
        assert {event.program_id for event in read_events(folder)} == programs


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM] * 2])
def test_the_command_serves_until_a_signal(tmp_path: Path, signals: list[int]) -> None:
    served = serve_command(
        tmp_path, "--time-scale", "20", "--kv-blocks", "1200", "--max-model-len", "16000", "--seed", "3"
    )
    assert served.stdout is not None
    first = served.stdout.readline()
    assert first.startswith("ready: http://127.0.0.1:")
    assert "modelled" in first
    url, name = first.split()[1].removesuffix("/v1,"), first.split("server ")[1].split()[0]
    assert httpx.get(f"{url}/continuum/engine").json()["server"] == name
    assert 'OpenAI(base_url="http://127.0.0.1:' in served.stdout.readline()
    served.send_signal(signals[0])
    assert served.stderr is not None
    said: list[str] = []
    while not any("requests have 30 s to finish" in line for line in said):
        said.append(served.stderr.readline())
        assert said[-1], said
    for number in signals[1:]:  # the second does not wait for anything
        served.send_signal(number)
    _, errors = served.communicate(timeout=300)
    assert served.returncode == 0, errors
    assert "seed=3" in (tmp_path / "log").read_text()  # an option of vLLM's, passed through


def test_a_signal_before_it_is_ready_stops_it_at_once(tmp_path: Path) -> None:
    """vLLM itself, asked to end while its engine starts, waits for that engine for ten minutes."""
    served = serve_command(tmp_path)
    try:
        os.kill(engine_that_starts(tmp_path / "log"), signal.SIGSTOP)  # it never gets ready
        sessions = sessions_of(tmp_path)
        assert any("EngineCore" in line for line in processes_of(sessions).values())
        served.send_signal(signal.SIGINT)
        output, errors = served.communicate(timeout=300)  # vLLM would take twice as long
    finally:
        served.kill()
    assert (served.returncode, output, errors) == (130, "", "stopped\n")
    assert ends_soon(sessions) == []


def engine_that_starts(log: Path) -> int:
    """The process of the engine core, from the first line that it writes."""
    found = until(lambda: re.findall(r"\(EngineCore pid=(\d+)\)", log.read_text()) if log.exists() else [])
    return int(found[0])
