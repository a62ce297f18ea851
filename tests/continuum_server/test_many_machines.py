"""The recipes of docs/server/several-engines.md, with the real routers of ``make endpoints``, and the files of deploy/.

A program stays on one server, and goes on elsewhere when that server dies.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from pkgutil import resolve_name

import httpx
import openai
import pytest
import yaml
from bench_cli import bench
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.local_model import TINY, ensure_model
from continuum_server.server_command import MIDDLEWARE, SCHEDULER, command_of, model_name
from continuum_server.server_config import ServerConfig
from continuum_server.vllm_plugin.plugin_settings import read_settings
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_events
from continuum_traces.records.replicas import read_record
from continuum_traces.records.run_dir import replica_name
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn
from continuum_traces.wire import FINAL_HEADER
from endpoints import DYNAMO_WORKER, ENVIRONMENTS, SYSTEM_PORT, Gateway, dynamo, environment, gateway, ray_serve
from waiting import until

from continuum_client import OpenAI

REPO = Path(__file__).resolve().parents[2]
PAGE, DEPLOY = REPO / "docs/server/several-engines.md", REPO / "deploy"
PROGRAMS, TURNS = 60, 6


def command(program: str, first: str) -> list[str]:
    """The options of the page's command that runs this program, from this one on."""
    found = re.search(rf"^{program} (.*?[^\\])$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", " "))
    return words[words.index(first) :]


def check(places: Sequence[Sequence[object]], dead: object, unrecorded: int = 0) -> None:
    """Each program was at one server from first to last turn, or at the dead one and then at the other one."""
    assert len(places) == PROGRAMS
    assert {TURNS - len(each) for each in places} <= {*range(unrecorded + 1)}
    moves = [sum(a != b for a, b in pairwise(each)) for each in places]
    assert [each for each, count in zip(places, moves, strict=True) if count > (each[0] == dead)] == []
    assert {each[0] for each in places} > {dead}, "one server got all programs"
    assert 1 in moves, "no program was at the dead server and went on elsewhere"


def play(url: str, folder: Path) -> None:
    """Play the programs with our load generator, which sends a broken turn again. All of them finish."""
    turns = (*[Turn(300, 60, tool_calls=(ToolCall("ls", 0.2),))] * (TURNS - 1), Turn(50, 10))
    write_programs(trace := folder / "small.jsonl.gz", [Program(f"p{i}", turns) for i in range(PROGRAMS)])
    out = folder / "out"
    done = bench("replay --jps 8 --no-report", trace, "--base-url", f"{url}/v1", "--out", out)
    assert done.exit_code == 0, done.output
    (row,) = json.loads((out / "summary.json").read_text())["policies"].values()
    assert (row["programs"], row["programs_finished"], row["programs_failed"]) == (PROGRAMS, PROGRAMS, 0)


def events(record: Path) -> list[SchedulerEvent]:
    """The events of all servers, each with its own count of turns."""
    return [event for folder in record.iterdir() for event in read_events(folder)]


def finishes(record: Path) -> int:
    return sum(event.event == "finish" for event in events(record))


def places_in(record: Path) -> list[list[int | None]]:
    """The servers that served the turns of each program. Of two that did, the last: a server may die between the end of
    a turn and its answer."""
    places: dict[str, dict[int, int | None]] = {}
    for event in read_record(record):
        if event.event == "finish":
            places.setdefault(event.program_id, {})[event.turn] = event.replica
    return [list(each.values()) for each in places.values()]


def release_by_our_client(url: str, model: str, record: Path) -> None:
    """Each release reaches the server that holds the program's KV."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", dialect="vllm", max_retries=0)
    for number in range(8):
        with client.program(f"released {number}"):
            asked = [{"role": "user", "content": f"{number} " * 60}]
            client.chat.completions.create(model=model, messages=asked, max_tokens=8)
    until(lambda: sum(event.event == "unpin" and event.reason == "last" for event in events(record)) == 8)


def both_serve(gate: Gateway, model: str, record: Path) -> bool:
    """Whether requests without an id have reached two servers: Ray answers when the first is ready."""
    gate.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    return sum(any(event.event == "finish" for event in read_events(folder)) for folder in record.glob("*")) == 2


@contextmanager
def killing(act: Callable[[], None]) -> Iterator[None]:
    """Let ``act`` run meanwhile."""
    killer = threading.Thread(target=act, daemon=True)
    killer.start()
    yield
    killer.join()


@pytest.mark.slow
def test_programs_behind_dynamo_outlive_a_worker(tmp_path: Path) -> None:
    """Dynamo says which worker served each turn. The clients are plain ``openai`` ones with their usual two retries:
    rarely, a request just after the death is answered 503 ("not ready, please retry")."""
    options, served = command("python -m dynamo.frontend", "--router-mode"), list[tuple[int, int]]()

    def workers(gate: Gateway) -> set[int]:
        return {one["instance_id"] for one in gate.http.get("/health").json()["instances"]}

    def turn(client: openai.OpenAI, program: int, number: int) -> int:
        text = f"{program} {program * 7919} " * 60 * (number + 1)
        answer = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": text}],
            max_tokens=8,
            extra_body={"nvext": {"extra_fields": ["worker_id"]}},
            extra_headers={"X-Session-ID": f"program-{program}"},
        )
        worker = int(answer.to_dict()["nvext"]["worker_id"]["decode_worker_id"])  # pyright: ignore
        served.append((program, worker))
        return worker

    with dynamo(tmp_path, 2, shlex.join(options)) as gate, ThreadPoolExecutor(20) as pool:
        gate.wait_for(lambda: len(workers(gate)) == 2)
        client = openai.OpenAI(base_url=f"{gate.url}/v1", api_key="none", http_client=gate.http)
        playing = [
            pool.submit(lambda program: [turn(client, program, number) for number in range(TURNS)], program)
            for program in range(PROGRAMS)
        ]
        until(lambda: len(served) >= PROGRAMS and len({worker for _, worker in served}) == 2)
        before = len(served)
        os.kill(gate.workers[0], signal.SIGKILL)
        places = [each.result() for each in playing]
    last = {worker for _, worker in served[-PROGRAMS:]}
    (dead,) = {worker for _, worker in served[:before]} - last
    check(places, dead)


@pytest.mark.slow
def test_programs_behind_vllm_router_outlive_a_server(tmp_path: Path) -> None:
    """The servers' records say where each turn was served. Our load generator sends a broken turn again."""
    record, options = tmp_path / "record", command("vllm-router", "--policy")
    servers = [
        Server(
            ServerConfig(
                port=0, kv_blocks=4000, record=record / replica_name(n), emulated=EmulatedSettings(time_scale=4)
            ),
            tmp_path / f"{n}.log",
        )
        for n in (0, 1)
    ]
    try:
        for server in servers:
            server.wait_until_healthy()

        def kill_in_the_middle() -> None:
            until(lambda: finishes(record) >= PROGRAMS)
            os.killpg(servers[1].process.pid, signal.SIGKILL)

        urls = [server.url for server in servers]
        with gateway("vllm-router", urls, tmp_path, options) as gate, killing(kill_in_the_middle):
            play(gate.url, tmp_path)
    finally:
        for server in servers:
            server.kill()
    check(places_in(record), 1, unrecorded=1)  # by the killed server


@pytest.mark.slow
def test_programs_behind_ray_serve_outlive_a_replica(tmp_path: Path) -> None:
    """Ray replaces a killed replica, and the new one takes over programs of both. A release reaches the program's
    server, because our client names the program in the headers."""
    record = tmp_path / "record"
    options = dict(word.split("=", 1) for word in command("PYTHONPATH=deploy serve run", "ray_serve:app")[1:])
    plugin = f"--scheduler-cls {SCHEDULER} --middleware {MIDDLEWARE}"
    assert options["command"].split() == f"vllm serve MODEL --port PORT {plugin}".split()
    config = {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}, "record": record / "PORT", "kv_blocks": 4000}
    engine = ServerConfig(port=0, emulated=EmulatedSettings(time_scale=4), **config)
    server, variables = command_of(engine, 0)
    server[server.index("--port") + 1] = "PORT"
    options |= {"gpus": "0", "command": shlex.join(server)}
    words = ["ray_serve:app", *(f"{name}={value}" for name, value in options.items())]
    with ray_serve(tmp_path, words, **variables) as gate:
        until(lambda: both_serve(gate, model_name(engine), record))
        release_by_our_client(gate.url, model_name(engine), record)
        before = finishes(record)

        def kill_in_the_middle() -> None:
            until(lambda: finishes(record) >= before + PROGRAMS)
            os.kill(gate.workers[0], signal.SIGKILL)

        with killing(kill_in_the_middle):
            play(gate.url, tmp_path)
    served = {folder: [event.t for event in read_events(folder)] for folder in record.iterdir()}
    for number, folder in enumerate(
        sorted((each for each in served if served[each]), key=lambda each: served[each][0])
    ):
        folder.rename(record / replica_name(number))
    dead, alive = sorted((0, 1), key=lambda number: [*read_events(record / replica_name(number))][-1].t)
    servers = [[place for place, _ in groupby(each)] for each in places_in(record) if len(each) > 1]
    assert len(servers) == PROGRAMS
    assert [each for each in servers if len({*each}) < len(each) or dead in each[1:]] == [], "they came back"
    assert [alive] in (each[:1] for each in servers), "one server got all programs"
    assert any(each[0] == dead and len(each) > 1 for each in servers), "no program went on elsewhere"


@pytest.mark.slow
def test_our_plugin_in_dynamos_vllm_worker(tmp_path: Path) -> None:
    """Ids of headers reach the plugin, which holds the program's KV until a release or the last request. This is the
    last turn, or, as Dynamo's documentation has it, a small request that only ends the session."""
    python = environment("dynamo-vllm") / "python"
    (tmp_path / "worker.py").write_text(DYNAMO_WORKER)
    *words, settings = command("DYN_SYSTEM_PORT=8081 python -m continuum_server.dynamo_worker", "--scheduler-cls")
    assert set(json.loads(settings)["continuum"]) == {"record_path"}
    record = tmp_path / "record"
    plugin = {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}, "record_path": str(record)}
    small = "--load-format dummy --enforce-eager --max-model-len 2048 --num-gpu-blocks-override 300"
    worker = [str(python), str(tmp_path / "worker.py"), "--model", str(ensure_model(TINY)), "--served-model-name", "m"]
    worker += [*small.split(), *words, json.dumps({"continuum": plugin})]
    paths = ":".join(str(REPO / folder) for folder in ("server_patch", "traces"))
    variables = f"PYTHONPATH={paths} VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1 OMP_NUM_THREADS=1"
    variables += f" DYN_SYSTEM_PORT={SYSTEM_PORT} DYN_SYSTEM_HOST=127.0.0.1"
    ways = ("X-Session-ID", "X-Dynamo-Session-ID", "X-Claude-Code-Session-Id", "thread-id")
    with dynamo(tmp_path, worker=f"{variables} {shlex.join(worker)}") as gate:

        def ask(way: str, turn: int, name: str, **more: str) -> None:
            body = {"messages": [{"role": "user", "content": f"{name} " * 30 * turn}], "max_tokens": 4}
            headers = {way: name} | ({"session-id": "s"} if way == "thread-id" else {}) | more
            answer = gate.post("/v1/chat/completions", {"model": "m", **body}, headers)
            assert answer.status_code == 200, answer.text

        def seen(kind: str) -> int:
            return sum(event.event == kind for event in read_events(record))

        for turn in (1, 2):
            for way in ways:
                ask(way, turn, f"by-{way}")
        gate.wait_for(lambda: seen("pin") == 2 * len(ways))
        ask("X-Dynamo-Session-ID", 3, "by-X-Dynamo-Session-ID", **{FINAL_HEADER: "true"})
        ending = {"model": "m", "messages": [{"role": "user", "content": "."}], "max_tokens": 1}
        gate.post("/v1/chat/completions", ending, {"X-Session-ID": "by-thread-id", FINAL_HEADER: "true"})
        ask("X-Dynamo-Session-ID", 9, "child", **{"X-Dynamo-Parent-Session-ID": "by-X-Session-ID"})
        gate.wait_for(lambda: seen("finish") == 2 * len(ways) + 3)
        assert gate.system is not None
        held = {"by-X-Session-ID", "by-X-Claude-Code-Session-Id", "child"}
        assert programs_that_are(gate.system, "held") == held
        answers = [gate.system.post("/engine/continuum/release", json={"program_id": "child"}).json() for _ in "12"]
        assert [answer["released"] for answer in answers] == [True, False]
        assert programs_that_are(gate.system, "held") == held - {"child"}
        assert "vllm:num_requests_running" in gate.system.get("/metrics").text
    recorded = [*read_events(record)]
    hits = [event.program_id for event in recorded if event.event == "unpin" and event.reason == "hit"]
    assert hits[: len(ways) + 1] == [f"by-{way}" for way in (*ways, "X-Dynamo-Session-ID")]
    assert next(event.root_id for event in recorded if event.program_id == "child") == "by-X-Session-ID"


def programs_that_are(system: httpx.Client, state: str) -> set[str]:
    """The programs in this state."""
    (engine,) = system.get("/engine/continuum/state").json()["engines"]
    return {row["program_id"] for row in engine["program_list"] if row["state"] == state}


@pytest.mark.slow
def test_container_files() -> None:
    """Linted, and all that they name is there: classes, options, settings, hosts, files."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415 - seconds
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    programs = ENVIRONMENTS.with_name(".frameworks") / "containers" / "bin"
    if not programs.exists():
        pytest.skip("`make frameworks` could not install the linters from PyPI")
    lints = (
        ("hadolint", "Dockerfile"),
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yml"),
        ("kubernetes-validate", "--strict", "--quiet", "kubernetes.yml"),
    )
    for program, *rest in lints:
        done = subprocess.run([programs / program, *rest], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    parts = {
        part["metadata"]["name"]: part["spec"] for part in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())
    }
    server = parts["continuum-server"]["template"]["spec"]["containers"][0]
    for words in (compose["services"]["server"]["command"], server["args"]):
        args = make_arg_parser(FlexibleArgumentParser()).parse_args([*json.loads(entrypoint)[2:], *words])
        assert [callable(resolve_name(name)) for name in (args.scheduler_cls, *args.middleware)] == [True, True]
        assert read_settings(args.additional_config).policy == "working-set"

    scraped = yaml.safe_load(compose["configs"]["prometheus"]["content"])["scrape_configs"][0]["static_configs"]
    assert scraped == [{"targets": ["server:8000"]}]
    assert all((DEPLOY / config["file"]).exists() for config in compose["configs"].values() if "file" in config)
    used = [config["source"] for part in compose["services"].values() for config in part.get("configs", ())]
    assert sorted(used) == sorted(compose["configs"])
    assert server["resources"]["limits"]["nvidia.com/gpu"] == args.data_parallel_size == 2
