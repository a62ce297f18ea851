"""What tests of the Grafana dashboard share: a real Prometheus that scrapes a server, and the queries of the panels."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
from continuum_bench.cli import app
from continuum_server.ports import hold_port
from waiting import until

DOCS = Path(__file__).parents[2] / "docs" / "server"
LOAD = "swebench --num-programs 6 --jps 4 --length-scale 0.1 --tool-times constant:0.01 --no-report --seed 1 --quiet"
"""The tools are so quick that every policy that pins at all pins here."""
HOLDING = "Only under policies that hold KV"
"""The title of the row of panels that have no data until a pin is made."""
OPTIONS: dict[str, dict[str, Any]] = {"continuum": {"cold_samples": 0}, "static-ttl": {"ttl_s": 2.0}}
DEADLINE_S = 60.0
RATE_INTERVAL = "5m"
"""Longer than the load and the questions take: a rate over less of it may have seen nothing, which is no number."""


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """Prometheus on a free port; it scrapes the server once a second."""
    folder.mkdir()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DOCS / "alerts.yml")],
        "scrape_configs": [{"job_name": "continuum", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    held = hold_port("127.0.0.1", 0)  # until Prometheus listens there
    address = f"127.0.0.1:{held.getsockname()[1]}"
    command = ["prometheus", "--config.file", str(folder / "prometheus.yml"), "--storage.tsdb.path", str(folder / "db")]
    with held, (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "--web.listen-address", address], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10.0) as client:
            until(lambda: _scraped(client), DEADLINE_S)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def _scraped(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200 and bool(values(client, "continuum:up"))
    except httpx.TransportError:
        return False


def values(client: httpx.Client, query: str) -> list[float]:
    """Ask Prometheus, and return the values that are numbers."""
    answer = client.get("/api/v1/query", params={"query": query})
    if answer.status_code != 200:
        raise ValueError(f"{query}: {answer.text}")
    found = [float(series["value"][1]) for series in answer.json()["data"]["result"]]
    return [value for value in found if not math.isnan(value)]


def queries(policy: str, holds: bool) -> dict[str, str]:
    """Return the queries of the dashboard panels that apply to this policy, by panel title."""
    found: dict[str, str] = {}
    shown = True
    for panel in json.loads((DOCS / "grafana.json").read_text())["panels"]:
        if panel["type"] == "row":
            policies = panel["title"].removeprefix("Only under ").split(", ")
            shown = holds if panel["title"] == HOLDING else panel["title"] == "Every policy" or policy in policies
        elif shown:
            for target in panel["targets"]:
                found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
    return found


def ask(client: httpx.Client, policy: str) -> tuple[int, list[str]]:
    """Send the queries until every one returns data, or a time limit is reached: pins, and panels without data."""

    def answers() -> tuple[int, list[str]]:
        pins = int(sum(values(client, "continuum:pins_total")))
        asked = queries(policy, holds=pins > 0)
        return pins, [title for title, query in asked.items() if not values(client, query)]

    with suppress(AssertionError):  # the caller shows what is left
        until(lambda: not answers()[1], DEADLINE_S)
    return answers()


def load(url: str, out: Path) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        app([*LOAD.split(), "--base-url", f"{url}/v1", "--out", str(out)], standalone_mode=False)
