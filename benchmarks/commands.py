"""What several benchmarks share: they run continuum-bench commands, read summaries, and print tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any

from continuum_analysis.compare.words import markdown


def bench(*arguments: object) -> None:
    """Run a continuum-bench command, without its results but with its progress. Exit if it fails."""
    command = [sys.executable, "-m", "continuum_bench", *map(str, arguments)]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def policies(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the policies of an experiment's summary.json, with their metrics."""
    policies: dict[str, dict[str, Any]] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["policies"]
    return policies


def show(lines: Iterable[str]) -> None:
    """Print lines, each as soon as it is there."""
    for line in lines:
        print(line, flush=True)  # noqa: T201


def tabular(*headings: str) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[str]]]:
    """Return a decorator for a function that yields rows: it then yields the lines of a Markdown table. If the function
    yields texts before its first row, they are printed above the table."""

    def make(rows_of: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[str]]:
        @wraps(rows_of)
        def lines(*arguments: Any, **named: Any) -> Iterator[str]:
            rows = rows_of(*arguments, **named)
            for row in rows:
                yield from [row] if isinstance(row, str) else markdown(headings, chain([row], rows))

        return lines

    return make
