"""What several benchmarks share: they run continuum-bench commands, read summaries, and print Markdown tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from continuum_analysis.compare.words import TextTable


def bench(*arguments: object) -> None:
    """Run a continuum-bench command, without its results but with its progress. Exit if it fails."""
    command = [sys.executable, "-m", "continuum_bench", *map(str, arguments)]
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def policies(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the policies of an experiment's summary.json, with their metrics."""
    policies: dict[str, dict[str, Any]] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["policies"]
    return policies


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(TextTable(headings, list(rows)).markdown())
