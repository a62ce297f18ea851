"""Reads YAML files. Every error message names the file and, if it is known, the line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from continuum_bench.errors import BenchError


@contextmanager
def yaml_of(path: Path) -> Iterator[str]:
    """Read a file for the block, which parses the text.

    Raises:
        BenchError: the file cannot be read, or the text is not YAML.
    """
    try:
        yield path.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{path}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BenchError(f"{path}: not a text file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise BenchError(f"{path}{line}: not YAML: {_first_line(error)}") from error


def yaml_value(text: str, where: str) -> Any:
    """Decode a value of the command line.

    Raises:
        BenchError: the text is not YAML; the message begins with ``where``.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BenchError(f"{where}: not YAML: {_first_line(error)}") from error


def _first_line(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).partition("\n")[0]
