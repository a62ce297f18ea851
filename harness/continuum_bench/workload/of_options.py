"""From a command's options to its workload, the same for every engine."""

from __future__ import annotations

from typing import cast

from continuum_traces.synth import Reading

from continuum_bench.options.run import RunOptions
from continuum_bench.show import print_notice
from continuum_bench.workload.load import TraceRequest
from continuum_bench.workload.workload import Arrivals, Workload, load_workload


def workload_of(name: str, options: RunOptions, context_tokens: int) -> Workload:
    """The programs to play; those left out are named on stderr.

    Raises:
        BenchError: options that do not go together, or no program left.
        TraceError: a fault in the file.
    """
    workload = load_workload(
        TraceRequest(
            name=options.traces.name.split(".")[0] if options.traces else name,
            traces=options.traces,
            form=options.form,
            num_programs=options.num_programs,
            turn_scale=options.turn_scale,
            length_scale=options.length_scale,
            shared_prefix=options.shared_prefix,
            reading=cast(Reading, options.tokens_reading),
            skip_invalid=options.skip_invalid,
            context_tokens=context_tokens,
        ),
        Arrivals(options.jps, options.arrivals, options.tool_times),
    )
    for problem in workload.trace.skipped:
        print_notice(f"skipped: {problem}")
    return workload
