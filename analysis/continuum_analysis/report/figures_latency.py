"""The report's figures of what a client sees: the wait to be admitted, the first token, and the tokens after it."""

from __future__ import annotations

from continuum_analysis.report.figure_kit import Figure, Groups, cdf_figure, report_styles


def admission_figure(groups: Groups) -> Figure:
    """Return the distribution of the first turns' queue waits, of all programs."""
    everyone = {policy: [p for run in runs for p in run.metrics.facts.everyone] for policy, runs in groups.items()}
    return cdf_figure(
        "admission",
        "Wait to be admitted",
        "Share of all programs whose first turn was scheduled within a time of its arrival, all seeds together. "
        "Further left is better; a line that ends below 100% leaves programs that were never scheduled.",
        "queue wait of the first turn, s",
        "programs",
        {policy: [s for p in each if (s := p.admit_wait_s) is not None] for policy, each in everyone.items()},
        report_styles(groups),
        {policy: len(each) for policy, each in everyone.items()},
    )


def latency_figures(groups: Groups) -> list[Figure]:
    """Return the distributions of TTFT and TPOT, on the client's clock, of the turns of finished programs."""
    return [
        _of_turns(
            groups,
            "ttft",
            "Time to first token",
            "Share of turns whose first token came within a time (queue and prefill), all seeds together. Further left "
            "is better.",
        ),
        _of_turns(
            groups,
            "tpot",
            "Time per output token",
            "Share of turns by the mean time from one token to the next, all seeds together. The more turns run at "
            "once, the slower each of them gets its tokens.",
        ),
    ]


def _of_turns(groups: Groups, name: str, title: str, text: str) -> Figure:
    turns = {policy: [turn for run in runs for turn in run.metrics.facts.turns] for policy, runs in groups.items()}
    known = {
        policy: [s for turn in each if (s := getattr(turn, f"{name}_s")) is not None] for policy, each in turns.items()
    }
    return cdf_figure(name, title, text, f"{name.upper()}, s", "turns", known, report_styles(groups))
