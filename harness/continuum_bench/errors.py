"""The error that the modules of the harness raise."""

from __future__ import annotations


class BenchError(Exception):
    """A command cannot be carried out. The message says what to change."""
