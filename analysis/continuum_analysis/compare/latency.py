"""A table of the latencies that clients see: TTFT, TPOT and ITL of each arm, and its output tokens/s per GPU."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.compare.intervals import NO_VALUE, interval_text
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.compare.words import TextTable
from continuum_analysis.metrics import BY_NAME, PERCENTILES

STATISTICS = ("mean", *PERCENTILES)
TOKENS_PER_GPU = "throughput_output_tokens_per_s_per_gpu"
CAPTION = "Queue wait of first turns, and latency of all turns on the client's clock"
NO_GAPS = "; percentiles of ITL need runs with --token-times"
HEADINGS = ("policy", "", *(each.upper() if each != "mean" else each for each in STATISTICS))


SPANS = (("admitted, s", "admit_wait"), ("TTFT, s", "ttft"), ("TPOT, ms", "tpot"), ("ITL, ms", "itl"))
"""Heading of the row, and name of the metric, which is in seconds."""


def latency_table(summary: Summary) -> TextTable | None:
    """Return the table; None if no client recorded first tokens (the preview's files)."""
    rows = [row for name, arm in summary.arms.items() for row in _rows(name, arm)]
    return TextTable(HEADINGS, rows) if rows else None


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def caption(summary: Summary) -> str:
    """Return the caption of the table, which says if it lacks percentiles of ITL."""
    lacking = any(arm.metrics.get("itl_p50_s") is None for arm in summary.arms.values())
    return CAPTION + (NO_GAPS if lacking else "")


def _rows(name: str, arm: ArmSummary) -> Iterator[list[str]]:
    if arm.metrics["ttft_mean_s"] is None:
        return
    for row, metric in SPANS:
        names = [f"{metric}_{statistic}_s" for statistic in STATISTICS]
        form = milliseconds if row.endswith("ms") else BY_NAME[names[0]].text
        yield [name, row, *(interval_text(arm.metrics.get(each), form) for each in names)]
    tokens = interval_text(arm.metrics[TOKENS_PER_GPU], BY_NAME[TOKENS_PER_GPU].text)
    yield [name, "output tokens/s per GPU", tokens, *[NO_VALUE] * (len(STATISTICS) - 1)]
