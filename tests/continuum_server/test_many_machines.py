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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml
from bench_cli import bench
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.local_model import TINY, ensure_model
from continuum_server.server_config import ServerConfig
from continuum_server.vllm_plugin.plugin_settings import read_settings
from continuum_traces.jsonl import write_programs
from continuum_traces.replica_records import read_record
from continuum_traces.run_dir import replica_name
from continuum_traces.schema import Program, ToolCall, Turn
from endpoints import ENVIRONMENTS, Gateway, dynamo, environment, gateway
from waiting import until

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


@pytest.mark.slow
def test_programs_behind_dynamo_outlive_a_worker(tmp_path: Path) -> None:
    """Dynamo says which worker served each turn. No request fails, so no client has to try again."""
    options, served = command("python -m dynamo.frontend", "--router-mode"), list[tuple[int, int]]()

    def workers(gate: Gateway) -> set[int]:
        return {one["instance_id"] for one in gate.http.get("/health").json()["instances"]}

    def turn(gate: Gateway, program: int, number: int) -> int:
        text = f"{program} {program * 7919} " * 60 * (number + 1)
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
        body |= {"nvext": {"extra_fields": ["worker_id"]}}
        answer = gate.post("/v1/chat/completions", body, {"X-Session-ID": f"program-{program}"})
        assert answer.status_code == 200, answer.text
        worker = int(answer.json()["nvext"]["worker_id"]["decode_worker_id"])
        served.append((program, worker))
        return worker

    with dynamo(tmp_path, 2, shlex.join(options)) as gate, ThreadPoolExecutor(20) as pool:
        gate.wait_for(lambda: len(workers(gate)) == 2)
        playing = [
            pool.submit(lambda program: [turn(gate, program, number) for number in range(TURNS)], program)
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
        dead = servers[1]

        def kill_in_the_middle() -> None:
            until(lambda: sum(event.event == "finish" for event in read_record(record)) >= PROGRAMS)
            os.killpg(dead.process.pid, signal.SIGKILL)

        turns = (*[Turn(300, 60, tool_calls=(ToolCall("ls", 0.2),))] * (TURNS - 1), Turn(50, 10))
        write_programs(trace := tmp_path / "small.jsonl.gz", [Program(f"p{i}", turns) for i in range(PROGRAMS)])
        with gateway("vllm-router", [server.url for server in servers], tmp_path, options) as gate:
            killer = threading.Thread(target=kill_in_the_middle)
            killer.start()
            out = tmp_path / "out"
            done = bench("replay --jps 8 --no-report", trace, "--base-url", f"{gate.url}/v1", "--out", out)
            killer.join()
        assert done.exit_code == 0, done.output
        (row,) = json.loads((out / "summary.json").read_text())["policies"].values()
        assert (row["programs"], row["programs_finished"], row["programs_failed"]) == (PROGRAMS, PROGRAMS, 0)
    finally:
        for server in servers:
            server.kill()
    places: dict[str, dict[int, int | None]] = {}
    for event in read_record(record):
        if event.event == "finish":  # the last one: a server may die between the end of a turn and its answer
            places.setdefault(event.program_id, {})[event.turn] = event.replica
    check([list(each.values()) for each in places.values()], 1, unrecorded=1)  # by the killed server


STUB = """
import runpy, sys, types
stub = types.ModuleType("transformers.models.qwen2_vl.image_processing_qwen2_vl")  # the real one needs torchvision
stub.smart_resize = None
sys.modules[stub.__name__] = stub
if __name__ == "__main__":
    runpy.run_module("dynamo.vllm", run_name="__main__")
"""


@pytest.mark.slow
def test_our_plugin_in_dynamos_vllm_worker(tmp_path: Path) -> None:
    """Ids of headers reach the plugin, which holds the program's KV: no middleware of ours is in the way."""
    python = environment("dynamo-vllm") / "python"
    (tmp_path / "worker.py").write_text(STUB)
    *words, settings = command("python -m dynamo.vllm", "--scheduler-cls")
    assert set(json.loads(settings)["continuum"]) == {"record_path"}
    plugin = {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}, "record_path": str(tmp_path / "record")}
    small = "--load-format dummy --enforce-eager --max-model-len 2048 --num-gpu-blocks-override 300"
    worker = [str(python), str(tmp_path / "worker.py"), "--model", str(ensure_model(TINY)), "--served-model-name", "m"]
    worker += [*small.split(), *words, json.dumps({"continuum": plugin})]
    paths = ":".join(str(REPO / folder) for folder in ("server_patch", "traces"))
    variables = f"PYTHONPATH={paths} VLLM_CPU_KVCACHE_SPACE=1 VLLM_HOST_IP=127.0.0.1 OMP_NUM_THREADS=1"
    ways = ("X-Session-ID", "X-Dynamo-Session-ID", "X-Claude-Code-Session-Id", "thread-id")
    with dynamo(tmp_path, worker=f"{variables} {shlex.join(worker)}") as gate:
        for turn in (1, 2):
            for way in ways:
                body = {"messages": [{"role": "user", "content": f"{way} " * 60 * turn}], "max_tokens": 4}
                headers = {way: f"by-{way}"} | ({"session-id": "s"} if way == "thread-id" else {})
                answer = gate.post("/v1/chat/completions", {"model": "m", **body}, headers)
                assert answer.status_code == 200, answer.text
        gate.wait_for(lambda: sum(event.event == "pin" for event in read_record(tmp_path / "record")) == 2 * len(ways))
    ends = [(event.program_id, event.reason) for event in read_record(tmp_path / "record") if event.event == "unpin"]
    assert [each for each in ends if each[1] == "hit"] == [(f"by-{way}", "hit") for way in ways]


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
        assert read_settings(args.additional_config).policy == "continuum"

    scraped = yaml.safe_load(compose["configs"]["prometheus"]["content"])["scrape_configs"][0]["static_configs"]
    assert scraped == [{"targets": ["server:8000"]}]
    assert all((DEPLOY / config["file"]).exists() for config in compose["configs"].values() if "file" in config)
    used = [config["source"] for part in compose["services"].values() for config in part.get("configs", ())]
    assert sorted(used) == sorted(compose["configs"])
    assert server["resources"]["limits"]["nvidia.com/gpu"] == args.data_parallel_size == 2
