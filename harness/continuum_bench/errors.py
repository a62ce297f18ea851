"""The errors that the modules of the harness raise: ``OptionError`` is a ``BenchError``."""

from __future__ import annotations


class BenchError(Exception):
    """A command cannot be carried out. The message says what to change."""


class OptionError(BenchError):
    """An option has a value that is not allowed. The message names the option and the allowed values."""
