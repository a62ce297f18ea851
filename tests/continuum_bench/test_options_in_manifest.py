"""Every option of a workload is in the manifest, so that two runs with different values are not taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_bench.options.declare import declared
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.load import load_trace
from continuum_bench.workload.workload import JobSource
from continuum_traces.typed import to_json


def entries(arrivals: ArrivalOptions, trace: TraceOptions = TraceOptions(num_programs=2)) -> dict[str, Any]:  # noqa: B008
    return to_json(JobSource(load_trace("swebench", trace), arrivals).facts)


@pytest.mark.parametrize("name", sorted(declared(ArrivalOptions).keys() - {"scenario", "jps", "time_limit_s"}))
def test_options_of_arrivals_are_there_under_their_names(name: str) -> None:
    """Whatever the value: nothing else is done when an option is added."""
    options = ArrivalOptions()
    object.__setattr__(options, name, "0.25:0.75")
    assert entries(options)[name] == "0.25:0.75"


def test_numbers_that_the_analysis_reads_are_there_as_numbers() -> None:
    facts = entries(ArrivalOptions(jps=0.5, time_limit_s=5.0))
    assert (facts["jps"], facts["time_limit_s"]) == (0.5, 5.0)


def test_options_of_traces_are_there_under_their_names() -> None:
    """Of the trace file its name is there, and of the number of programs the number that are played."""
    names = declared(TraceOptions).keys() - {"traces", "num_programs"}
    options = TraceOptions(num_programs=2)
    for name in names:
        object.__setattr__(options, name, 7)
    assert options.given(TraceOptions) == {**dict.fromkeys(names, 7), "num_programs": 2}
    facts = entries(ArrivalOptions(), TraceOptions(num_programs=2, length_scale=0.5))
    assert (facts["length_scale"], facts["programs"]) == (0.5, 2)
