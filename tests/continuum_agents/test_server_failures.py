"""A server that fails in the middle of a batch: what the programs are called, the exit status, and what runs again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_batches import Batch, write_lines
from aiohttp import web
from continuum_traces.json_io import read_json
from fake_server import FakeServer, good, hang_up, streaming

pytestmark = pytest.mark.slow

AGENT = """
import json, os, sys, urllib.request
task = sys.argv[1]
def ask(words):
    body = {"model": "m", "max_tokens": 3, "stream": task == "torn", "messages": [{"role": "user", "content": words}]}
    headers = {"Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    return urllib.request.urlopen(request).read()
ask(f"{task} begins")
try:
    ask(f"{task} goes on")
except Exception:
    if task == "retried":
        ask(f"{task} goes on")
    sys.exit({"retried": 0, "swallowed": 0}.get(task, 1))
"""
ENDS = {
    "fine": ("Finished", True),
    "busy": ("ServerFailed", None),
    "limited": ("ServerFailed", None),
    "overloaded": ("ServerFailed", None),
    "late": ("ServerFailed", None),
    "gateway": ("ServerFailed", None),
    "gone": ("ServerFailed", None),
    "torn": ("ServerFailed", None),
    "swallowed": ("ServerFailed", None),  # its agent ends as if all were well
    "retried": ("Finished", True),
    "own": ("Exit 1", False),  # it asked for something wrong
    "unknown": ("Exit 1", False),
    "long": ("Exit 1", False),
}
STATUSES = {
    **{"busy": 503, "limited": 429, "overloaded": 529, "late": 408, "gateway": 504, "swallowed": 500},
    **{"own": 400, "unknown": 404, "long": 413},
}


def test_a_server_that_fails_in_the_middle(tmp_path: Path, start: Callable[..., Batch]) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    tasks = write_lines(tmp_path / "tasks.jsonl", ({"instance_id": name, "problem_statement": name} for name in ENDS))
    well, retried = False, False

    async def answer(request: web.Request, number: int) -> Any:
        nonlocal retried
        task, _, rest = (await request.json())["messages"][0]["content"].partition(" ")
        fails = not well and rest == "goes on" and task != "fine"
        if not fails or (task == "retried" and retried):
            return await good(request, number)
        if task == "retried":
            retried = True
            return web.Response(status=503)
        if task == "torn":
            stream = await streaming(request)
            await stream.write(b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n')
            return stream
        return hang_up(request) if task == "gone" else web.Response(status=STATUSES[task], text="no")

    def play(server: FakeServer) -> Batch:
        words = ("--model", "m", "--dialect", "headers", "--", sys.executable, str(agent), "{task}")
        return start(tasks, server.root, tmp_path / "run", *words, framework="command")

    with FakeServer("openai", handler=answer) as server:
        batch = play(server)
        said = batch.ended(1)
        assert batch.ends() == ENDS
        assert "8 ServerFailed" in said
        assert "503" in batch.programs()["busy"]["error"]
        failed = {name for name, (status, _) in ENDS.items() if status == "ServerFailed"}
        assert set(read_json(batch.out / "preds.json")) == set(ENDS) - failed
        well, before = True, len(server.asked)
        again = play(server)
        assert "5 finished before" in again.ended(0)
        assert len(server.asked) - before == 2 * len(failed)
    ends = {name.partition("#")[0]: end for name, end in again.ends().items()}
    assert {name for name, end in ends.items() if end == ("Finished", True)} == {*failed, "fine", "retried"}
