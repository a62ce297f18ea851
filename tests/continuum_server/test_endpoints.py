"""What reaches a server behind real routers and gateways, and that a program stays on one server there.

``make endpoints`` installs them in ``.endpoints``; those that are missing are skipped. The table of
docs/client/dialects.md must say what is measured here; ``REWRITE=1`` in the environment writes it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bench_cli import runner
from continuum_bench.cli import app
from continuum_server.launcher import Server
from continuum_server.server_config import ServerConfig
from continuum_server.vllm_plugin.request_tags import normalize_tags
from continuum_traces.importers.registry import read_any
from continuum_traces.schema import Tags
from endpoints import AUTHORIZED, BODIES, ENVIRONMENTS, KEY, Gateway, dynamo, environment, gateway
from fake_server import FakeServer, Seen
from openai import APIStatusError

from continuum_client import OpenAI
from continuum_client.dialects import DIALECTS
from continuum_client.endpoints import endpoints
from continuum_client.tagging import tag_body

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::continuum_client.ContinuumWarning")]

REPO = ENVIRONMENTS.parent
PAGE = REPO / "docs" / "client" / "dialects.md"
WAYS: dict[str, Sequence[Callable[[str], tuple[dict[str, str], dict[str, Any]]]]] = {
    "`X-Session-ID`": [lambda name: ({"X-Session-ID": name}, {})],
    "`session_id`, `vllm_xargs`": [
        lambda name: ({}, {"session_id": name}),
        lambda name: ({}, {"vllm_xargs": {"program_id": name}}),
    ],
    "`prompt_cache_key`": [lambda name: ({}, {"prompt_cache_key": name})],
    "Claude Code's": [lambda name: ({"X-Claude-Code-Session-Id": name}, {})],
    "Codex's": [lambda name: ({"thread-id": name}, {})],
}
"""Ways to name a program, by column of the table: headers and body fields."""
CALLS: dict[str, Callable[[OpenAI], Callable[..., Any]]] = {
    "chat/completions": lambda client: client.chat.completions.create,
    "completions": lambda client: client.completions.create,
    "responses": lambda client: client.responses.create,
}
HEADING = ["", "route", *WAYS, "`auto`"]
MARKS = "<!-- arrivals -->\n", "<!-- end of arrivals -->"
NUMBERS = count(10)

Arrived = Callable[[str], tuple[str | None, bool] | None]
"""The program under which the server sees the request with this text, and whether it has the client's API key."""


def measure(gate: Gateway, model: str, arrived: Arrived) -> tuple[dict[str, list[str]], list[str]]:
    """Return a row of cells for each route, and the routes on which the client's API key arrives.

    A cell is ``yes``, ``-`` (the request arrives without the id), or the status of the refusal.
    """
    rows, with_key = dict[str, list[str]](), list[str]()
    for route, body in BODIES.items():
        row = list[str]()
        for ways in WAYS.values():
            cells = list[str]()
            for way in ways:
                name, text = f"program-{next(NUMBERS)}", f"question {next(NUMBERS)} of them"
                headers, fields = way(name)
                answer = gate.post(f"/v1/{route}", {"model": model, **body(text), **fields}, {**headers, **AUTHORIZED})
                came = arrived(text) if answer.status_code in (200, 500) else None
                cells.append(str(answer.status_code) if came is None else "yes" if came[0] == name else "-")
                if came is not None and came[1] and route not in with_key:
                    with_key.append(route)
            row.append(" / ".join(dict.fromkeys(cells)))
        rows[route] = [*row, by_our_client(gate, model, route, arrived) if route in CALLS else ""]
    return rows, with_key


def by_our_client(gate: Gateway, model: str, route: str, arrived: Arrived) -> str:
    """As our client names the program in the dialect ``auto``."""
    text = f"question {next(NUMBERS)} of ours"
    client = OpenAI(base_url=f"{gate.url}/v1", api_key=KEY, dialect="auto", max_retries=0)
    with client.program() as program:
        try:
            CALLS[route](client)(model=model, **BODIES[route](text))
        except APIStatusError as error:
            return str(error.status_code)
    came = arrived(text)
    return "yes" if came is not None and came[0] == program.id else "-"


def release(gate: Gateway, server: FakeServer) -> str:
    """Say whether a release arrives, or the status of the refusal."""
    answer = gate.post("/continuum/programs/p/release", {}, AUTHORIZED)
    came = [seen for seen in server.seen if seen.path.endswith("/release")]
    return ("arrives" if has_key(came[-1]) else "arrives without the key") if came else str(answer.status_code)


def has_key(seen: Seen) -> bool:
    return seen.headers.get("Authorization") == AUTHORIZED["Authorization"]


def program_of(seen: Seen) -> str | None:
    """As our server's plugin reads it."""
    headers = {name.lower(): value for name, value in seen.headers.items()}
    body = json.loads(normalize_tags(json.dumps(seen.body).encode(), headers).body)
    found = body.get("vllm_xargs", {}).get("program_id")
    return None if found is None else str(found)


def check(name: str, found: dict[str, list[str]], note: str) -> None:
    """Compare the rows of a gateway, and the line about its version below the table, with the page's."""
    routes: dict[tuple[str, ...], list[str]] = {}
    for route, cells in found.items():
        routes.setdefault(tuple(cells), []).append(route)
    about = f"- {version(name)}:"
    rows = ["| " + " | ".join((name, ", ".join(names), *cells)) + " |" for cells, names in routes.items()]
    written = sorted([*rows, f"{about} {note}"])
    before, rest = PAGE.read_text().split(MARKS[0])
    inside, after = rest.split(MARKS[1])
    lines, ours = inside.splitlines(), (f"| {name} |", about)
    if os.environ.get("REWRITE"):
        kept = sorted([*written, *(line for line in lines[2:] if line and not line.startswith(ours))])
        heading = ["| " + " | ".join(HEADING) + " |", "|---" * len(HEADING) + "|"]
        table, below = ([line for line in kept if line[0] == mark] for mark in "|-")
        PAGE.write_text(
            "\n".join([before + MARKS[0] + heading[0], heading[1], *table, "", *below, "", MARKS[1] + after])
        )
    else:
        assert sorted(line for line in lines if line.startswith(ours)) == written


def version(name: str) -> str:
    found = re.search(rf"^{name}:.*==([\d.]+)$", (REPO / "requirements/endpoints.txt").read_text(), re.MULTILINE)
    assert found is not None
    return f"{name} {found[1]}"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer("plugin") as server:
        server.refuses = lambda *_: None
        yield server


@pytest.mark.parametrize("name", ["vllm-router", "litellm", "sglang-router", "smg"])
def test_what_arrives_behind_a_gateway(name: str, server: FakeServer, tmp_path: Path) -> None:
    def arrived(text: str) -> tuple[str | None, bool] | None:
        seen = [one for one in server.seen if text in json.dumps(one.body)]
        return (program_of(seen[-1]), has_key(seen[-1])) if seen else None

    with gateway(name, [server.root], tmp_path) as gate:
        rows, with_key = measure(gate, "m", arrived)
        check(name, rows, f"API key on {', '.join(with_key) or 'no route'}; release {release(gate, server)}")
        if name == "litellm":  # with headers forwarded, two more ids arrive on every route
            forwarded, _ = measure(gate, "forwarded", arrived)
            first, claude = HEADING.index("`X-Session-ID`") - 2, HEADING.index("Claude Code's") - 2
            for row in rows.values():
                row[first] = row[claude] = "yes"
            assert forwarded == rows


def test_what_arrives_in_dynamo(tmp_path: Path) -> None:
    """The oracle is Dynamo's own record of the requests that its workers answered."""
    with dynamo(tmp_path) as gate:
        done = count(1)

        def arrived(text: str) -> tuple[str | None, bool]:
            ended = next(done)
            events = gate.wait_for(lambda: (found := gate.traced())[ended - 1 :] and found)
            return events[-1].get("agent_context", {}).get("session_id"), False

        rows, _ = measure(gate, "m", arrived)
        check("dynamo", rows, f"release {gate.post('/continuum/programs/p/release', {}).status_code}")
        seen = asked_doctor(gate.url)
        assert (seen["program id"], seen["release"]) == ("-", "-")
        assert CACHED.fullmatch(seen["prefix cache"])
        client = OpenAI(base_url=f"{gate.url}/v1", api_key="none", dialect="dynamo", max_retries=0)
        with client.program("told", output_tokens=4):
            for route, call in CALLS.items():
                call(client)(model="m", **BODIES[route]("a question"))
        assert endpoints.accepts(str(client.base_url), "m", "extension")  # it refused nothing
        gate.wait_for(lambda: sum("told" in str(event.get("agent_context")) for event in gate.traced()) == len(CALLS))
        programs = {program.program_id: program for program in read_any(tmp_path / "trace.jsonl", "dynamo")}
        assert len(programs["told"].turns) == len(CALLS)


CACHED = re.compile(r"ok [1-9]\d+ of \d+ prompt tokens of turn 3")
HOLD = re.compile(r"ok (\d+) tokens held, \1 of them found\. 1 x full attention ")


def asked_doctor(root: str, *options: str) -> dict[str, str]:
    """What each check says; ``-``: it cannot tell, or it is not needed; ``NO``: it failed."""
    words = ["doctor", "--json", "--base-url", f"{root}/v1", *options]
    done = runner.invoke(app, words, env={"OPENAI_API_KEY": KEY})
    checks = json.loads(done.stdout)["checks"]
    marks = ["ok " + check["found"] if check["ok"] else "-" if check["optional"] else "NO" for check in checks]
    assert done.exit_code == ("NO" in marks)
    return {check["name"]: mark for check, mark in zip(checks, marks, strict=True)}


def test_doctor_of_a_server_without_the_scheduler(tmp_path: Path) -> None:
    config = ServerConfig(port=0, policy="stock", kv_blocks=2000, max_model_len=16_000)
    with Server(config, tmp_path / "log") as server:
        seen = asked_doctor(server.url)
    assert CACHED.fullmatch(seen.pop("prefix cache"))
    assert seen.pop("server").endswith("no policy named; its GPU is emulated")
    assert seen == {"scheduler": "-"}


def test_doctor_says_what_arrives(tmp_path: Path) -> None:
    config = ServerConfig(
        port=0,
        policy="static-ttl",
        policy_options={"ttl_s": 60.0},  # until the doctor asks, however slow this machine is
        kv_blocks=2000,
        max_model_len=16_000,
        vllm_arguments=("--served-model-name", "m"),
    )
    with Server(config, tmp_path / "log") as server:
        seen = asked_doctor(server.url)
        assert seen.pop("server").startswith("ok server ")
        assert CACHED.fullmatch(seen.pop("prefix cache"))
        assert HOLD.match(seen.pop("hold"))
        assert seen == {
            "program id": "ok body:vllm_xargs, turns 3",
            "release": "ok held, then ended",
            "hints": "ok none was ignored",
            "histories": "ok 1 program listed; no prompt differs early from the one before",
        }
        seen = asked_doctor(server.url, "--dialect", "headers")
        assert (seen["program id"], seen["release"]) == ("ok header:x-session-id, turns 3", "-")
        with gateway("litellm", [server.url], tmp_path) as gate:
            behind = ("--server-url", server.url)
            assert asked_doctor(gate.url)["program id"] == "-"
            assert asked_doctor(gate.url, *behind)["program id"] == "ok body:vllm_xargs, turns 3"
            assert asked_doctor(gate.url, *behind, "--dialect", "headers")["program id"] == "NO"
            forwarded = asked_doctor(gate.url, *behind, "--dialect", "headers", "--served-model", "forwarded")
            assert forwarded["program id"] == "ok header:x-session-id, turns 3"


def test_doctor_sees_a_hold_on_the_default_server(tmp_path: Path) -> None:
    with Server(ServerConfig(port=0, max_model_len=16_000), tmp_path / "log") as server:
        assert HOLD.match(asked_doctor(server.url)["hold"])


SGLANG = """
import json, sys, types
site, package, utils = sys.argv[1], types.ModuleType("sglang"), types.ModuleType("sglang.utils")
package.__path__, utils.convert_json_schema_to_str = [site + "/sglang"], None
sys.modules.update({"sglang": package, "sglang.utils": utils})  # without all that a GPU needs
from sglang.srt.entrypoints.openai import protocol as they
kinds = they.ChatCompletionRequest, they.CompletionRequest, they.ResponsesRequest
for kind, body in zip(kinds, json.load(sys.stdin)):
    print(kind.model_validate(body).session_id)
"""


def test_sglang_s_own_schema_reads_the_session() -> None:
    (site,) = environment("sglang").parent.glob("lib/python*/site-packages")

    def read(tags: Tags) -> subprocess.CompletedProcess[str]:
        own = {"/chat/completions": {"messages": []}, "/completions": {"prompt": "x"}, "/responses": {"input": "x"}}
        bodies = [{"model": "m", **own[path], **tag_body(tags, DIALECTS["sglang"], path)} for path in own]
        words, sent = [sys.executable, "-c", SGLANG, str(site)], json.dumps(bodies)
        return subprocess.run(words, input=sent, capture_output=True, text=True)

    assert read(Tags(program_id="task-7")).stdout.split() == ["task-7"] * 3
    assert "session_id" in read(Tags(program_id=7)).stderr  # type: ignore[arg-type]  # it is a schema, and strict
