"""Prints experiments as one Markdown table: the rows of docs/results/policies.md.

python benchmarks/policies_table.py "name of the workload=runs/experiment" ...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from commands import markdown, policies

HEADINGS = (
    *("workload", "policy", "JCT mean", "P95", "bubble", "prefix hit", "pin hit", "preemptions", "ratio to vllm"),
)


def main() -> None:
    rows = []
    for argument in sys.argv[1:]:
        name, _, folder = argument.rpartition("=")
        for number, (policy, row) in enumerate(policies(Path(folder)).items()):
            rows.append([name if number == 0 else "", policy, *cells(row)])
    print(markdown(HEADINGS, rows))  # noqa: T201


def cells(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['jct_mean_s']:.0f}{interval(row.get('jct_mean_interval_s'), 0)}",
        f"{row['jct_p95_s']:.0f}",
        f"{row['bubble_mean_s']:.0f}",
        f"{row['prefix_hit_ratio']:.1%}",
        "-" if row["pin_hit_ratio"] is None else f"{row['pin_hit_ratio']:.0%}",
        f"{row['preemptions']:.1f}",
        ratio(row),
    ]


def ratio(row: dict[str, Any]) -> str:
    if row["ratio_to_vllm"] is None:
        return "-"
    return f"{row['ratio_to_vllm']:.2f}{interval(row.get('ratio_to_vllm_interval'), 2)}"


def interval(bounds: list[float] | None, digits: int) -> str:
    return "" if bounds is None else f" ({bounds[0]:.{digits}f}-{bounds[1]:.{digits}f})"


if __name__ == "__main__":
    main()
