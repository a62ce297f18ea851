"""Checks of ``continuum-bench doctor``, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from continuum_analysis.compare.words import TextTable

from continuum_bench.show import print_json, print_table


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    found: str
    advice: str = ""
    optional: bool = False
    """No other feature depends on it, so a failed check is no error."""


def show_checks(checks: Sequence[Check], title: str, as_json: bool, **more: object) -> int:
    """Print the checks, as JSON with ``more``. Returns 1 if a check failed that is not optional."""
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], **more})
    else:
        states = ("ok" if check.ok else "-" if check.optional else "NO" for check in checks)
        rows = [(check.name, state, check.found, check.advice) for check, state in zip(checks, states, strict=True)]
        headings = ("check", "", "found", "what to do")
        print_table(TextTable(headings, rows), title, words=headings)
    return 0 if all(check.ok or check.optional for check in checks) else 1
