"""Shared fixtures. Real traces are used where ../shared/traces exists beside the checkout."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["COLUMNS"] = "160"  # several test processes have 80, one has none

if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `make test &`: a job in the background ignores Ctrl-C

gc.disable()  # until all tests are collected: a fifth of that time is spent on imports that leave no garbage

EXPECTED_SKIPS = (
    "AGENTX_S=900",  # an hour
    "beside this checkout",  # recorded traces that cannot be published
    "not in the repository",  # measurements that cannot be published
    "may not make namespaces here",  # a sandbox around CI may forbid bubblewrap its own
    "Docker cannot run a container here",  # a sandbox around CI may forbid it the daemon, or CI may not be root
    "could not install it from",  # there may be no npm, and packages may have no build for this machine
    "and neither pyenv nor uv has one",  # an agent framework that needs another Python
    "lmcache is not installed",  # no requirement of ours: pip install lmcache, and what it asks for
)
"""Parts of the reasons for which CI may skip a test. A test that is skipped for another reason fails there."""

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

REAL_TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


@pytest.fixture(scope="session")
def real_traces() -> Path:
    if not REAL_TRACES.is_dir():
        pytest.skip("no real traces beside this checkout (../shared/traces)")
    return REAL_TRACES


@pytest.fixture(autouse=True)
def _our_log(caplog: pytest.LogCaptureFixture) -> None:
    """Parts of vLLM that a test imports set the root logger's level; ours is what it is in a server."""
    caplog.set_level(logging.WARNING, logger="continuum")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For several processes: tests that share a server or another costly fixture run in one, slow tests run first."""
    for item in items:
        group = _shared_by(item)
        if group is not None and item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _shared_by(item: pytest.Item) -> str | None:
    """The folder or file whose module or session fixtures this test uses; None where it uses none of ours."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest names it privately
    homes = [
        definitions[-1].baseid
        for definitions in fixtures.values()
        if definitions[-1].scope != "function" and definitions[-1].baseid.startswith("tests/")
    ]
    return min(homes, key=len) if homes else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_surprise((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_surprise((yield))


def _without_surprise(report: Report) -> Report:
    """In CI, turn a skip whose reason is not among ``EXPECTED_SKIPS`` into a failure."""
    if os.environ.get("CI") and report.skipped and not any(part in _reason(report) for part in EXPECTED_SKIPS):
        report.outcome, report.longrepr = "failed", f"CI expects no skip for this reason: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else report.longreprtext


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped, because")
    for reason, number in reasons.most_common():
        terminalreporter.line(f"{number:5}  {reason}")


settings.register_profile(  # machines are slow at times: no test depends on how fast it runs
    "fuzz",
    derandomize=False,  # where CI is set, Hypothesis itself is not random
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "same every time",
    settings.get_profile("fuzz"),
    max_examples=100 if os.environ.get("CI") else 25,
    derandomize=True,
    database=None,
    # CI prints a failing example as it was found: to shrink one took 45 minutes. `make fuzz` shrinks.
    phases=[phase for phase in Phase if not os.environ.get("CI") or phase not in (Phase.shrink, Phase.explain)],
)
settings.load_profile("same every time")
