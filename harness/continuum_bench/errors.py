"""The harness's own error; alone here, for every module of it raises one."""

from __future__ import annotations


class BenchError(Exception):
    """A request that cannot be carried out; the message says what to change."""
