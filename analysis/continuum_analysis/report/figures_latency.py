"""The report's distributions of times: of programs, of the wait to be admitted, of first tokens and later ones."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.report.figure_kit import Figure, Groups, cdf_figure


def distributions(groups: Groups) -> Iterator[Figure]:
    """Yield the distributions of JCT and of the first turns' queue waits of all programs, then of TTFT and TPOT, on the
    client's clock, of the turns of finished programs."""
    yield cdf_figure(
        groups,
        "jct-cdf",
        "job completion time, s",
        "programs",
        lambda facts: [program.jct_s if program.finished else None for program in facts.everyone],
        of_all=True,
    )
    yield cdf_figure(
        groups,
        "admission",
        "queue wait of the first turn, s",
        "programs",
        lambda facts: [program.admit_wait_s for program in facts.everyone],
        of_all=True,
    )
    yield cdf_figure(groups, "ttft", "TTFT, s", "turns", lambda facts: [turn.ttft_s for turn in facts.turns])
    yield cdf_figure(groups, "tpot", "TPOT, s", "turns", lambda facts: [turn.tpot_s for turn in facts.turns])
