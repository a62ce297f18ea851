"""What Prometheus' own tool says of our metrics and of docs/server/alerts.yml."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.registry import POLICIES
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from continuum_traces.schema import SchedulerEvent

ALERTS = Path(__file__).parents[2] / "docs" / "server" / "alerts.yml"
COLON = "metric names should not contain ':'"
"""vLLM's own metrics have one too (``vllm:num_requests_waiting``)."""


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=300)


def metrics_page() -> str:
    """/metrics under a policy that has every gauge."""
    gauges = {name: {"value": 0, "help": text} for policy in POLICIES.values() for name, text in policy.gauges.items()}
    counted = defaultdict(int, Metrics().to_json())
    state: dict[str, Any] = defaultdict(int, {"pins": [], "gauges": gauges, "metrics": counted})
    return prometheus_text([state])


def test_our_metrics_are_as_prometheus_wants_them() -> None:
    done = promtool("check", "metrics", stdin=metrics_page())
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


def test_alerts_ask_for_metrics_that_exist() -> None:
    asked = set(re.findall(r"continuum:\w+", re.sub(r"#.*", "", ALERTS.read_text())))
    shown = set(re.findall(r"^(continuum:\w+)", metrics_page(), flags=re.M))
    assert asked
    assert asked <= shown
