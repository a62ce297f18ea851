"""The error that the modules of the harness raise."""

from __future__ import annotations


class BenchError(Exception):
    """A request that cannot be carried out; the message says what to change."""
