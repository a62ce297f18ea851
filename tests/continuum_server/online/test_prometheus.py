"""The real Prometheus scrapes a server: each panel of the dashboard has data, and each alert rule is evaluated."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from continuum_bench.cli import app
from live_server import Live, live
from typer.testing import CliRunner

from .conftest import FAST

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs" / "server"
LOAD = "swebench --num-programs 6 --jps 4 --length-scale 0.1 --tool-times constant:0.01 --no-report --seed 1 --quiet"
"""Tools so quick that every policy that pins does so."""
DEADLINE_S = 60.0


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """Prometheus on a free port; it scrapes the server once a second."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    folder.mkdir()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DOCS / "alerts.yml")],
        "scrape_configs": [{"job_name": "continuum", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", "--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "db")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--web.listen-address", address], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10.0) as client:
            wait_for(lambda: scraped(client), f"{folder / 'log'}: nothing was scraped")
            yield client
    finally:
        process.terminate()
        process.wait(30)


def scraped(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200 and bool(values(client, "continuum:up"))
    except httpx.TransportError:
        return False


def values(client: httpx.Client, query: str) -> list[float]:
    answer = client.get("/api/v1/query", params={"query": query})
    assert answer.status_code == 200, f"{query}: {answer.text}"
    found = [float(series["value"][1]) for series in answer.json()["data"]["result"]]
    return [value for value in found if not math.isnan(value)]


def wait_for(condition: Callable[[], bool], why: str) -> None:
    until_s = time.monotonic() + DEADLINE_S  # noqa: TID251 - a real server is waited for
    while not condition():
        assert time.monotonic() < until_s, why  # noqa: TID251
        time.sleep(0.25)


def queries(policy: str) -> dict[str, str]:
    """The queries of the dashboard panels that apply to this policy, by panel title."""
    found: dict[str, str] = {}
    shown = True
    for panel in json.loads((DOCS / "grafana.json").read_text())["panels"]:
        if panel["type"] == "row":
            shown = panel["title"] == "Every policy" or policy in panel["title"].removeprefix("Only under ").split(", ")
        elif shown:
            for target in panel["targets"]:
                found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", "10s")
    return found


def check(server: Live, policy: str, folder: Path) -> None:
    with prometheus(folder / "prometheus", server.server.url.removeprefix("http://")) as client:
        command = [*LOAD.split(), "--base-url", f"{server.server.url}/v1", "--out", str(folder / "run")]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        asked = queries(policy)

        def empty() -> list[str]:
            return [title for title, query in asked.items() if not values(client, query)]

        wait_for(lambda: not empty(), f"under {policy} these have no data: {', '.join(empty())}")
        groups: list[dict[str, Any]] = client.get("/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == len(re.findall(r"^ +- alert:", (DOCS / "alerts.yml").read_text(), flags=re.M))
        assert [(rule["name"], rule["health"], rule["state"]) for rule in rules] == [
            (rule["name"], "ok", "inactive") for rule in rules
        ]
        for rule in rules:
            for metric in re.findall(r"(?:continuum|vllm):\w+(?:\{[^}]*\})?", rule["query"]):
                assert values(client, metric), f"{rule['name']} asks for {metric}, which the server does not have"


def test_every_panel_has_data_under_static_ttl(emulated: Live, tmp_path: Path) -> None:
    check(emulated, "static-ttl", tmp_path)


@pytest.mark.parametrize(("policy", "options"), [("continuum", {"cold_samples": 0}), ("working-set", {})])
def test_every_panel_has_data_under(policy: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The policies that have a row of their own."""
    with live(tmp_path, policy=policy, policy_options=options, **FAST) as server:
        check(server, policy, tmp_path)
