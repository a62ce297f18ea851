"""The latencies that a client sees, as a table: TTFT, TPOT and ITL of each arm, and its output tokens per GPU."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.compare.intervals import NO_VALUE, Interval, interval_text
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.compare.words import TextTable

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
SPANS = (("TTFT, s", "ttft", 1.0, "{:.2f}"), ("TPOT, ms", "tpot", 1e3, "{:.1f}"), ("ITL, ms", "itl", 1e3, "{:.1f}"))
"""Row, metric, factor from seconds, form of a number."""
TOKENS = "throughput_output_tokens_per_s_per_gpu"
CAPTION = "Latency of turns on the client's clock"
NO_GAPS = "; percentiles of ITL need runs with --token-times"
HEADINGS = ("policy", "", *(each.upper() if each != "mean" else each for each in STATISTICS))


def latency_table(summary: Summary) -> TextTable | None:
    """Rows for each arm; None where no client recorded first tokens (the preview's files)."""
    rows = [row for name, arm in summary.arms.items() for row in _rows(name, arm)]
    return TextTable(HEADINGS, rows) if rows else None


def caption(summary: Summary) -> str:
    """What the table shows, and what it cannot."""
    lacking = any(arm.metrics.get("itl_p50_s") is None for arm in summary.arms.values())
    return CAPTION + (NO_GAPS if lacking else "")


def _rows(name: str, arm: ArmSummary) -> Iterator[list[str]]:
    if arm.metrics["ttft_mean_s"] is None:
        return
    for row, metric, factor, form in SPANS:
        found = [arm.metrics.get(f"{metric}_{statistic}_s") for statistic in STATISTICS]
        yield [name, row, *(interval_text(_times(each, factor), form.format) for each in found)]
    tokens = interval_text(arm.metrics[TOKENS], "{:.0f}".format)
    yield [name, "output tokens/s per GPU", tokens, *[NO_VALUE] * (len(STATISTICS) - 1)]


def _times(found: Interval | None, factor: float) -> Interval | None:
    if found is None or found.bounds is None:
        return None if found is None else Interval(found.mean * factor)
    return Interval(found.mean * factor, found.bounds[0] * factor, found.bounds[1] * factor)
