"""The figure of job completion time against load, for runs with several loads."""

from __future__ import annotations

from collections.abc import Mapping

from continuum_analysis.compare.intervals import interval_text
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.report.figure_kit import Figure, report_styles


def load_figure(summaries: Mapping[float | None, Summary]) -> Figure:
    """Return the figure of mean JCT by programs per second, with 95% intervals over seeds."""
    lines, rows = [], []
    policies = dict.fromkeys(policy for summary in summaries.values() for policy in summary.arms)
    for policy, look in report_styles(policies).items():
        there = {jps: summary.arms[policy] for jps, summary in summaries.items() if policy in summary.arms}
        jcts = {jps: arm.metrics["jct_mean_s"] for jps, arm in there.items()}
        points = [(jps, jct) for jps, jct in jcts.items() if jps is not None and jct is not None]
        means = [jct.mean for _, jct in points]
        low, high = zip(*(jct.spread for _, jct in points), strict=True) if points else ((), ())
        lines.append(Line(policy, look, [jps for jps, _ in points], means, low, high))
        rows.append((policy, *(interval_text(jcts.get(jps), "{:.1f}".format) for jps in summaries)))
    panel = Panel("", "programs arriving per second", "mean job completion time, s", lines)
    headings = ("policy", *(f"{jps:g}/s" if jps is not None else "load unknown" for jps in summaries))
    return Figure("jct-against-jps", [panel], TextTable(headings, rows))
