"""``instrument()`` and ``continuum-instrument``: every openai client of a process tags and records, whoever made it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from continuum_traces.records import read_turns
from fake_server import ASK, FakeServer
from sdk import ask, ran, trace_of

import continuum_client
from continuum_client import UnknownDialect, instrument, uninstrument
from continuum_client.instrument_command import STARTUP

CLASSES = (openai.OpenAI, openai.AsyncOpenAI, openai.AzureOpenAI, openai.AsyncAzureOpenAI)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    uninstrument()
    assert not any("request" in vars(cls) for cls in CLASSES)


class Loud(openai.OpenAI):
    """A subclass that overrides what we patch."""

    calls = 0

    def request(self, *args: Any, **kwargs: Any) -> Any:
        Loud.calls += 1
        return super().request(*args, **kwargs)


def test_clients_made_before_and_after(vllm: FakeServer, tmp_path: Path) -> None:
    before = openai.OpenAI(base_url=vllm.url)
    assert ask(before).choices[0].message.content == "fine"
    agents = instrument(dialect="vllm", record=tmp_path)
    Loud.calls = 0
    clients = [before, openai.OpenAI(base_url=vllm.url), before.with_options(timeout=9), Loud(base_url=vllm.url)]
    clients.append(openai.AzureOpenAI(azure_endpoint=vllm.root, api_version="1", api_key="k"))
    for number, client in enumerate(clients):
        with agents.program(f"p{number}", metadata={"client": number}) as p:
            assert ask(client).choices[0].message.content == "fine"
            ran(p, "pytest")
            assert len(list(ask(client, stream=True))) > 1
    before.embeddings.create(model="m", input="hi", encoding_format="float")
    assert Loud.calls == 3  # and the release
    assert vllm.ids == [None, *(f"p{number}" for number in range(5) for _ in range(2))]
    tools = [turn.body.get("vllm_xargs", {}).get("last_func_call") for turn in vllm.turns]
    assert tools == [None, *[None, "pytest"] * 5]
    assert vllm.released == [f"p{number}" for number in range(5)]
    assert [turn.program_id for turn in read_turns(tmp_path)] == vllm.ids[1:]
    assert [program.metadata for program in trace_of(tmp_path).values()] == [{"client": number} for number in range(5)]
    assert type(before) is openai.OpenAI


def test_ours_are_tagged_once_and_keep_their_options(vllm: FakeServer, server: FakeServer, tmp_path: Path) -> None:
    instrument(dialect="vllm", record=tmp_path / "all")
    ours = continuum_client.OpenAI(base_url=server.url, dialect="openai", record=tmp_path / "ours")
    with ours.program("p"):
        ask(ours)
        continuum_client.wrap(openai.OpenAI(base_url=vllm.url), dialect="vllm").chat.completions.create(**ASK)
    assert server.turns[0].body["prompt_cache_key"] == "p"
    assert vllm.ids == ["p"]
    assert len(list(read_turns(tmp_path / "ours"))) == 2
    assert not (tmp_path / "all" / "turns.jsonl").read_text()


def test_uninstrument_restores(vllm: FakeServer) -> None:
    client = openai.OpenAI(base_url=vllm.url)
    before = dict(vars(client))
    instrument(dialect="vllm")
    instrument(dialect="headers")  # replaces
    ask(client)
    for _ in range(2):
        uninstrument()
    assert not any("request" in vars(cls) for cls in CLASSES)
    ask(client)
    assert [(turn.program_id is None, "vllm_xargs" in turn.body) for turn in vllm.turns] == [
        (False, False),
        (True, False),
    ]
    assert before.items() <= vars(client).items()
    with pytest.raises(UnknownDialect):
        instrument(dialect="vlm")  # type: ignore[arg-type]


class Wrapper:
    """A method that counts calls only if it is bound as attributes are: as wrapt, OpenInference's, works."""

    def __init__(self, method: Any, calls: list[str]) -> None:
        self.method, self.calls = method, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.method(*args, **kwargs)

    def __get__(self, client: Any, cls: type) -> Any:
        return lambda *args, **kwargs: self.calls.append("theirs") or self(client, *args, **kwargs)


def test_a_patch_of_somebody_elses(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was there before still sees each call, ours too, and is restored; one that came later stays."""
    calls: list[str] = []
    theirs = Wrapper(openai.OpenAI.request, calls)
    client = openai.OpenAI(base_url=vllm.url)
    with monkeypatch.context() as patch:
        patch.setattr(openai.OpenAI, "request", theirs)
        instrument(dialect="vllm")
        ask(client)
        continuum_client.OpenAI(base_url=vllm.url, implicit=False).chat.completions.create(**ASK)
        uninstrument()
        assert vars(openai.OpenAI)["request"] is theirs
    instrument(dialect="vllm")
    ours = openai.OpenAI.request
    with monkeypatch.context() as patch:
        patch.setattr(openai.OpenAI, "request", lambda *args, **kwargs: ours(*args, **kwargs))
        uninstrument()
        ask(client)
    assert calls == ["theirs"] * 3  # two calls and the release
    assert [turn.program_id is None for turn in vllm.turns] == [False, True, True]


def test_clients_are_not_kept_alive(vllm: FakeServer) -> None:
    instrument(dialect="vllm", implicit=False)
    client = openai.OpenAI(base_url=vllm.url)
    ask(client)
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


def test_a_forked_process_releases_nothing(vllm: FakeServer) -> None:
    instrument(dialect="vllm")
    openai.OpenAI(base_url=vllm.url).chat.completions.create(**ASK)
    child = os.fork()
    if child == 0:
        uninstrument()
        os._exit(0)
    os.waitpid(child, 0)
    assert vllm.released == []
    uninstrument()
    assert vllm.released == vllm.ids


PATCHED = [(openai.OpenAI, "request"), (openai.AsyncOpenAI, "request"), (threading.Thread, "start")]
PATCHED.append((ThreadPoolExecutor, "submit"))


def methods() -> list[Any]:
    return [vars(cls).get(name) for cls, name in PATCHED]


def test_only_instrument_patches_and_uninstrument_undoes_it_all(client: continuum_client.OpenAI) -> None:
    before = methods()
    with client.program("p") as p:
        ask(client)
        with p.active():
            assert methods() == before
    for _ in range(2):
        instrument()
        assert [new is not old for new, old in zip(methods(), before, strict=True)] == [True] * 4
        uninstrument()
        assert methods() == before


def test_a_plain_client_inside_a_program(vllm: FakeServer) -> None:
    """Without ``instrument()`` its call is sent as it is, or with the tags that the caller adds."""
    plain = openai.OpenAI(base_url=vllm.url)
    client = continuum_client.OpenAI(base_url=vllm.url, dialect="vllm")
    with client.program("p"):
        ask(plain)
        ask(plain, extra_headers=continuum_client.headers())
        ask(plain.with_options(default_headers=continuum_client.headers()))
    assert vllm.ids == [None, "p", "p"]


# ------------------------------------------------------------------------------------------ the command

AGENT = """
import sys
import openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="k")
messages = [{"role": "user", "content": "Hello"}]
for _ in range(2):
    reply = client.chat.completions.create(model="m", messages=messages).choices[0].message
    messages += [reply.model_dump(exclude_none=True), {"role": "user", "content": "More"}]
print(reply.content)
"""
SITE = "import sys; sys.stderr.write('their sitecustomize\\n')\n"


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PATH", "HOME", "PYTHON"))}
    return subprocess.run(
        command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=300, check=False
    )


def instrumented(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "continuum_client.instrument_command", *arguments]


def test_environment_variables_alone(vllm: FakeServer, tmp_path: Path) -> None:
    """They instrument an agent like the command; it goes on if one of them is wrong."""
    (tmp_path / "agent.py").write_text(AGENT)
    printed = run(instrumented("--dialect", "vllm"), tmp_path).stdout.splitlines()
    variables = dict(line.split("=", 1) for line in printed)
    assert (variables["PYTHONPATH"].startswith(str(STARTUP)), variables["CONTINUUM_DIALECT"]) == (True, "vllm")
    wrong = run([sys.executable, "agent.py", vllm.url], tmp_path, **{**variables, "CONTINUUM_DIALECT": "vlm"})
    assert wrong.stdout == "fine\n"
    assert "not tagged: CONTINUUM_DIALECT 'vlm'" in wrong.stderr


def test_a_process_without_openai_imports_nothing(tmp_path: Path) -> None:
    code = "import sys; print([n for n in sys.modules if n.startswith(('openai', 'continuum_client'))])"
    done = run(instrumented(sys.executable, "-c", code), tmp_path)
    assert (done.stdout, done.returncode) == ("[]\n", 0)
    assert done.stderr.startswith("continuum-instrument: no call was tagged: ")


OTEL = """
from importlib.metadata import entry_points
for entry_point in entry_points(group="opentelemetry_pre_instrument"):
    entry_point.load()()
"""
OURS = f"from continuum_client import OpenAI\n{AGENT}"
TAGGED = "2 calls in 1 program tagged, 18 of 38 prompt tokens from the cache"
LINES = [
    ("{python}", AGENT, TAGGED),
    ("{python}", OURS, TAGGED),
    ("{python}", AGENT.replace("messages=messages", "messages=[]"), "0 of 2 calls tagged"),
    # OpenTelemetry's sitecustomize comes first and hides ours: opentelemetry-instrument and its operator do this
    ("env PYTHONPATH={folder}/otel:{path} {python}", AGENT, TAGGED),
]


@pytest.mark.parametrize(("python", "code", "said"), LINES)
def test_the_command(vllm: FakeServer, tmp_path: Path, python: str, code: str, said: str) -> None:
    """An agent that does not know us: tagged, recorded, released; a ``sitecustomize`` of the user's still runs."""
    for name, text in (("agent.py", code), ("site/sitecustomize.py", SITE), ("otel/sitecustomize.py", OTEL)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    words = python.format(python=sys.executable, folder=tmp_path, path=f"{STARTUP}:{path}").split()
    command = instrumented("--dialect", "vllm", "--record", "runs", "--", *words, "agent.py", vllm.url)
    done = run(command, tmp_path, PYTHONPATH=path)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"continuum-instrument: {said}")
    assert done.stderr.count("their sitecustomize") == 1 + (python == "{python}")  # of our command, and of the agent
    if said == TAGGED:
        one, two = vllm.ids
        assert one == two is not None
        assert vllm.turns[0].body["session_id"] == one
        assert vllm.released == [one]
        assert [turn.program_id for turn in read_turns(tmp_path / "runs")] == [one, two]
        assert (tmp_path / "runs" / "trace.jsonl").read_text().count('"kind":"end"') == 1
