"""docs/server/alerts.yml and grafana.json against /metrics, and what Prometheus' own tool says of all three."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.base import Policy
from continuum_server.policy.registry import make_policy
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import SchedulerEvent
from nano import BITING, SERVED, play, program
from policy_driver import MACHINE

PAGES = Path(__file__).parents[2] / "docs" / "server"
ALERTS = PAGES / "alerts.yml"
HOLDING = "Only under policies that hold KV"
"""The title of the dashboard's row of panels that have no data until a pin is made."""
COLON = "metric names should not contain ':'"
"""vLLM's own metrics have one too (``vllm:num_requests_waiting``)."""


def metrics_page(gauges: dict[str, Any], events: Sequence[SchedulerEvent] = ()) -> str:
    """Return the text of /metrics of a server that has recorded these events."""
    metrics = Metrics()
    for event in events:
        metrics.count(event)
    state: dict[str, Any] = defaultdict(
        int, {"gauges": gauges, "metrics": defaultdict(int, metrics.to_json()), "keys": []}
    )
    return prometheus_text([state])


def gauges_of(policy: Policy) -> dict[str, Any]:
    return {name: {"value": policy.state()[name], "help": text} for name, text in policy.gauges.items()}


def queries(policy: str, holds: bool = True) -> dict[str, str]:
    """Return the queries of the dashboard panels that apply to this policy, by panel title."""
    found: dict[str, str] = {}
    shown = True
    for panel in json.loads((PAGES / "grafana.json").read_text())["panels"]:
        if panel["type"] == "row":
            policies = panel["title"].removeprefix("Only under ").split(", ")
            shown = holds if panel["title"] == HOLDING else panel["title"] == "Every policy" or policy in policies
        for target in panel["targets"] if shown and panel["type"] != "row" else ():
            found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", "5m")
    return found


GAUGES = {policy: gauges_of(make_policy(policy, {}, MACHINE)) for policy in SERVED}
ALL_GAUGES = {name: gauge for gauges in GAUGES.values() for name, gauge in gauges.items()}
EXPORTED: dict[str, set[str]] = {
    policy: set(re.findall(r"^# TYPE (continuum:\w+)", metrics_page(gauges), flags=re.M))
    for policy, gauges in GAUGES.items()
}


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=300)


def test_our_metrics_are_as_prometheus_wants_them() -> None:
    done = promtool("check", "metrics", stdin=metrics_page(ALL_GAUGES))
    assert [line for line in done.stderr.splitlines() if COLON not in line] == []
    assert COLON in done.stderr


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    text = (Path(__file__).parent / "alerts_test.yml").read_text()
    (tmp_path / "test.yml").write_text(text.replace("ALERTS", str(ALERTS)))
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_longest_wait_is_that_of_the_oldest_request_that_has_not_started() -> None:
    metrics = Metrics()
    assert metrics.longest_wait_s(9.0) == 0.0
    metrics.count(SchedulerEvent(1.0, "arrive", "a", 0, request_id="a"))
    metrics.count(SchedulerEvent(3.0, "arrive", "b", 0, request_id="b"))
    assert metrics.longest_wait_s(5.0) == 4.0
    metrics.count(SchedulerEvent(5.0, "start", "a", 0, prompt_tokens=1, hit_tokens=0, request_id="a"))
    assert metrics.longest_wait_s(5.0) == 2.0
    metrics.count(SchedulerEvent(6.0, "finish", "b", 0, status="abort", request_id="b"))
    assert metrics.longest_wait_s(7.0) == 0.0


@pytest.mark.parametrize("policy", EXPORTED)
def test_the_rows_of_a_policy_show_all_its_metrics_and_no_other(policy: str) -> None:
    asked = re.findall(r"continuum:\w+", " ".join(queries(policy).values()))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == EXPORTED[policy]


@pytest.mark.parametrize("policy", SERVED)
def test_every_panel_has_data(policy: str, tmp_path: Path) -> None:
    """After programs on vLLM's scheduler, whose page Prometheus reads once a minute, as it counts up."""
    played = play([Job(program(f"p{number}"), 0.1 * number) for number in range(12)], policy, BITING[policy])
    page = metrics_page(gauges_of(played.scheduler.table.policy), played.events)
    samples = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    asked = queries(policy, holds=bool(played.of("pin")))
    has_data = [{"labels": "{}", "value": 1}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"0+{value}x20"} for name, _, value in samples],
        "promql_expr_test": [
            {"expr": f"count(({query}) > -Inf) > bool 0", "eval_time": "10m", "exp_samples": has_data}
            for query in asked.values()
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [test]}))  # JSON is YAML
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
