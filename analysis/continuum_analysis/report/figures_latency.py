"""The report's figures of what a client sees of each turn: its first token, and the tokens after it."""

from __future__ import annotations

from continuum_analysis.report.figure_kit import Figure, Groups, cdf_figure, report_styles


def latency_figures(groups: Groups) -> list[Figure]:
    """Return the distributions of TTFT and TPOT, on the client's clock, of the turns of finished programs."""
    turns = {policy: [turn for run in runs for turn in run.metrics.facts.turns] for policy, runs in groups.items()}
    ttft = {policy: [t.ttft_s for t in each if t.ttft_s is not None] for policy, each in turns.items()}
    tpot = {policy: [t.tpot_s for t in each if t.tpot_s is not None] for policy, each in turns.items()}
    looks = report_styles(groups)
    return [
        cdf_figure(
            "ttft",
            "Time to first token",
            "Share of turns whose first token came within a time (queue and prefill), all seeds together. Further left "
            "is better.",
            "TTFT, s",
            "turns",
            ttft,
            looks,
        ),
        cdf_figure(
            "tpot",
            "Time per output token",
            "Share of turns by the mean time from one token to the next, all seeds together. The more turns run at "
            "once, the slower each of them gets its tokens.",
            "TPOT, s",
            "turns",
            tpot,
            looks,
        ),
    ]
