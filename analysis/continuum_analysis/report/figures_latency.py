"""The report's distributions of times: of programs, of the wait to be admitted, of first tokens and later ones."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.records.timeline import ProgramTimes
from continuum_analysis.report.figure_kit import Figure, Groups, cdf_figure


def distributions(groups: Groups) -> Iterator[Figure]:
    """Yield four distributions: of all programs JCT and the queue wait of the first turn; of turns TTFT
    and TPOT, which the client measured."""
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
        lambda facts: [_admitted_s(program) for program in facts.everyone],
        of_all=True,
    )
    yield cdf_figure(
        groups,
        "ttft",
        "TTFT, s",
        "turns",
        lambda facts: [turn.ttft_s if turn.left_s is None else None for turn in facts.requests],
        of_all=True,
    )
    yield cdf_figure(groups, "tpot", "TPOT, s", "turns", lambda facts: [turn.tpot_s for turn in facts.turns])


def _admitted_s(program: ProgramTimes) -> float | None:
    """Return the queue wait of the first turn; None if it was never scheduled."""
    return program.admit_wait_s if program.turns and program.turns[0].start_s is not None else None
