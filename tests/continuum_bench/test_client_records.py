"""The commands take what the client records as it is."""

from __future__ import annotations

import json
from pathlib import Path

from bench_cli import succeeded
from fake_server import FakeServer
from sdk import agent

from continuum_client import OpenAI


def test_commands_take_it_as_it_is(tmp_path: Path) -> None:
    with FakeServer("openai") as server:
        client = OpenAI(base_url=server.url, api_key="none", record=tmp_path, max_retries=0)
        for number in range(4):
            agent(client, f"p{number}", stream=number % 2 == 0)
    stats = json.loads(succeeded("traces stats --json", tmp_path / "trace.jsonl").stdout)
    assert (stats["programs"], stats["turns_total"]) == (4, 12)
    assert {tool["name"] for tool in stats["tools"]} == {"run grep", "run pytest"}
    assert "jct_mean_s" in succeeded("analyze --json", tmp_path).stdout
