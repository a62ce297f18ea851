"""The real Prometheus scrapes a server: each panel of the dashboard has data, and each alert rule is evaluated."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from dashboard import DOCS, OPTIONS, ask, load, prometheus, values
from live_server import Live, live

from .conftest import FAST

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"),
]


def check(server: Live, policy: str, folder: Path) -> None:
    with prometheus(folder / "prometheus", server.server.url.removeprefix("http://")) as client:
        load(server.server.url, folder / "run")
        pins, without_data = ask(client, policy)
        assert (without_data, pins > 0) == ([], policy != "concur")
        groups: list[dict[str, Any]] = client.get("/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == len(re.findall(r"^ +- alert:", (DOCS / "alerts.yml").read_text(), flags=re.M))
        assert [rule["name"] for rule in rules if rule["health"] != "ok" or rule["state"] == "firing"] == []
        for rule in rules:
            for metric in re.findall(r"(?:continuum|vllm):\w+(?:\{[^}]*\})?", rule["query"]):
                assert values(client, metric), f"{rule['name']} asks for {metric}, which the server does not have"


def test_every_panel_has_data_under_static_ttl(emulated: Live, tmp_path: Path) -> None:
    check(emulated, "static-ttl", tmp_path)


@pytest.mark.parametrize("policy", ["concur", "continuum", "working-set"])
def test_every_panel_has_data_under(policy: str, tmp_path: Path) -> None:
    """The policies that have a row of their own."""
    with live(tmp_path, policy=policy, policy_options=OPTIONS.get(policy, {}), **FAST) as server:
        check(server, policy, tmp_path)
