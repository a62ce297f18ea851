"""Scenarios: the options that the public rules of other agent benchmarks ask for, by name (``--scenario``).

Sources: agentx-harness 1.0.12 on PyPI (SemiAnalysis' InferenceX AgentX) and the Agentic Inference task in the
repository mlcommons/endpoints (MLPerf).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Scenario:
    """The rules of one benchmark, as far as a replay can follow them."""

    sets: Mapping[str, Any]
    """Values of options that the user did not give."""
    cannot: tuple[str, ...] = ()
    """Why a result of ours is never comparable with a published one."""
    exact: Mapping[str, Any] = field(default_factory=dict)
    """Values that options must have for a comparable result."""
    repeats: bool = False
    """Whether sessions are played again and again until the time limit, unless the user gives their number."""


_AGENTX = {"start_within": "0.25:0.75", "warm_up": "11r", "max_idle_s": 300.0, "max_idle_all_s": 10.0}

SCENARIOS: Mapping[str, Scenario] = {
    "agentx": Scenario(
        # Each lane: a first request with the context so far, then 10 requests of warm-up.
        sets={"time_limit_s": 3600.0, **_AGENTX},
        exact={"tool_times": "recorded", **_AGENTX},
        repeats=True,
    ),
    "mlperf-agentic": Scenario(
        sets={"cool_down": "lanes"},
        exact={"cool_down": "lanes", "warm_up": "0", "start_within": "0:0", "tool_times": "recorded"},
        cannot=("the accuracy of answers is not measured",),
    ),
}
