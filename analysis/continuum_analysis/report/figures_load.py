"""Completion time against load, where there are several loads."""

from __future__ import annotations

from collections.abc import Mapping

from continuum_analysis.compare.intervals import interval_text
from continuum_analysis.compare.summary import Summary
from continuum_analysis.report.figure_kit import Figure, axes, line_look, marker_look, report_styles


def load_figure(summaries: Mapping[float | None, Summary]) -> Figure:
    """Mean JCT by programs per second, with 95% intervals over seeds."""
    plot = axes("programs arriving per second", "mean job completion time, s")
    rows = []
    policies = dict.fromkeys(policy for summary in summaries.values() for policy in summary.arms)
    for policy, arm in report_styles(policies).items():
        jcts = {
            jps: summary.arms[policy].metrics["jct_mean_s"]
            for jps, summary in summaries.items()
            if policy in summary.arms
        }
        known = [(jps, jct) for jps, jct in jcts.items() if jps is not None and jct is not None]
        means = [jct.mean for _, jct in known]
        bounds = [jct.bounds or (jct.mean, jct.mean) for _, jct in known]
        plot.add_scatter(
            x=[jps for jps, _ in known],
            y=[round(mean, 3) for mean in means],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [round(high - mean, 3) for mean, (_, high) in zip(means, bounds, strict=True)],
                "arrayminus": [round(mean - low, 3) for mean, (low, _) in zip(means, bounds, strict=True)],
                "thickness": 1,
                "width": 4,
            },
            name=policy,
            mode="lines+markers",
            marker={**marker_look(arm), "size": 8},
            line=line_look(arm),
        )
        rows.append((policy, *(interval_text(jcts.get(jps), "{:.1f}".format) for jps in summaries)))
    return Figure(
        "jct-against-jps",
        "Completion time against load",
        "Mean job completion time at each arrival rate, over seeds, with 95% intervals where there are several.",
        plot,
        ("policy", *(f"{jps:g}/s" if jps is not None else "load unknown" for jps in summaries)),
        tuple(rows),
    )
