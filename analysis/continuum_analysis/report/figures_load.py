"""Completion time against load, where there are several loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continuum_analysis.report.figure_kit import Figure, axes, line_look, marker_look, report_styles


def load_figure(summaries: Mapping[float | None, Mapping[str, Any]]) -> Figure:
    """Mean JCT by programs per second, with 95% intervals over seeds."""
    plot = axes("programs arriving per second", "mean job completion time, s")
    rows = []
    policies = dict.fromkeys(policy for summary in summaries.values() for policy in summary["policies"])
    for policy, arm in report_styles(policies).items():
        points = [
            (jps, summary["policies"][policy])
            for jps, summary in summaries.items()
            if jps is not None and policy in summary["policies"]
        ]
        known = [(jps, row) for jps, row in points if row["jct_mean_s"] is not None]
        bounds = [row["intervals"]["jct_mean_s"] or [row["jct_mean_s"]] * 2 for _, row in known]
        means = [row["jct_mean_s"] for _, row in known]
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
        rows.append((policy, *(_cell(summary["policies"].get(policy)) for summary in summaries.values())))
    return Figure(
        "jct-against-jps",
        "Completion time against load",
        "Mean job completion time at each arrival rate, over seeds, with 95% intervals where there are several.",
        plot,
        ("policy", *(f"{jps:g}/s" if jps is not None else "load unknown" for jps in summaries)),
        tuple(rows),
    )


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or row["jct_mean_s"] is None:
        return "-"
    interval = row["intervals"]["jct_mean_s"]
    spread = f" ({interval[0]:.1f} to {interval[1]:.1f})" if interval else ""
    return f"{row['jct_mean_s']:.1f}{spread}"
