"""docs/server/alerts.yml and grafana.json against /metrics, and what Prometheus' own tool says of all three."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.registry import POLICIES, make_policy
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from continuum_traces.schema import SchedulerEvent
from dashboard import queries
from nano import SERVED
from policy_driver import MACHINE

PAGES = Path(__file__).parents[2] / "docs" / "server"
ALERTS = PAGES / "alerts.yml"
COLON = "metric names should not contain ':'"
"""vLLM's own metrics have one too (``vllm:num_requests_waiting``)."""


def metrics_page(gauges: dict[str, Any]) -> str:
    """/metrics, after its first scrape."""
    counted = defaultdict(int, Metrics().to_json())
    state: dict[str, Any] = defaultdict(int, {"gauges": gauges, "metrics": counted})
    return prometheus_text([state])


def gauges_of(policy: str) -> dict[str, Any]:
    made = make_policy(policy, {}, MACHINE)
    return {name: {"value": made.state()[name], "help": text} for name, text in made.gauges.items()}


ALL_GAUGES = {name: gauge for policy in POLICIES if policy in SERVED for name, gauge in gauges_of(policy).items()}
EXPORTED: dict[str, set[str]] = {
    policy: set(re.findall(r"^# TYPE (continuum:\w+)", metrics_page(gauges_of(policy)), flags=re.M))
    for policy in POLICIES
    if policy in SERVED
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
    asked = re.findall(r"continuum:\w+", " ".join(queries(policy, holds=True).values()))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == EXPORTED[policy]
