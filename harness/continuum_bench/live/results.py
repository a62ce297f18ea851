"""The output of a live run at its end."""

from __future__ import annotations

from continuum_analysis.compare.summary import ArmSummary

from continuum_bench.live.load import LoadCounters
from continuum_bench.show import print_notice


def client_side(arm: ArmSummary) -> str:
    """Return one line with the latencies that the clients measured."""
    shown = (("TTFT mean", "ttft_mean_s"), ("P95", "ttft_p95_s"), ("TPOT mean", "tpot_mean_s"))
    known = [(label, value) for label, metric in shown if (value := arm.mean(metric)) is not None]
    parts = [f"{label} {value * 1e3:.1f} ms" for label, value in known]
    return "client's side: " + (", ".join(parts) or "no turn was answered")


def report_generator(counters: LoadCounters) -> None:
    if counters.errors:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in counters.errors.items())
        print_notice(f"errors: {kinds}; {counters.retries} tries again, {counters.programs_failed} programs failed")
