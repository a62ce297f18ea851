"""Every option of a workload is in the manifest, so that two runs with different values are not taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_bench.options.declare import declared
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload import load, workload
from continuum_bench.workload.load import load_trace
from continuum_bench.workload.workload import JobSource
from continuum_traces.schema import Workload

GIVEN: dict[str, Any] = {
    "jps": 0.5,
    "arrivals": "constant",
    "concurrency": 2,
    "tool_times": "constant:2",
    "hints": "tool",
    "tags": "none",
    "time_limit_s": 5.0,
    "warm_up": "1",
    "cool_down": "1",
    "hint_error": "0.5",
}
"""Other values than the defaults, of the options of arrivals that have fields of their own."""


def facts(arrivals: ArrivalOptions, trace: TraceOptions = TraceOptions(num_programs=2)) -> Workload:  # noqa: B008
    return JobSource(load_trace("swebench", trace), arrivals).facts


def test_options_of_arrivals_that_have_fields_change_them() -> None:
    assert GIVEN.keys() == workload.NAMED
    for name, value in GIVEN.items():
        hints = {"hints": "tool"} if name == "hint_error" else {}
        assert facts(ArrivalOptions(**hints, **{name: value})) != facts(ArrivalOptions(**hints)), name


@pytest.mark.parametrize("name", sorted(declared(ArrivalOptions).keys() - workload.NAMED - {"scenario"}))
def test_the_other_options_of_arrivals_are_there_under_their_names(name: str) -> None:
    """Whatever the value: nothing else is done when an option is added."""
    options = ArrivalOptions()
    object.__setattr__(options, name, "0.25:0.75")
    assert facts(options).more[name] == "0.25:0.75"


def test_options_of_traces_are_there_under_their_names() -> None:
    names = declared(TraceOptions).keys() - load.NAMED
    options = TraceOptions(num_programs=2)
    for name in names:
        object.__setattr__(options, name, 7.0)
    assert options.given(TraceOptions, load.NAMED) == dict.fromkeys(names, 7.0)
    assert facts(ArrivalOptions(), TraceOptions(num_programs=2, length_scale=0.5)).more["length_scale"] == 0.5
