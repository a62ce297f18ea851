"""Reading YAML files: every fault is one sentence that names the file and, where YAML knows it, the line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from continuum_bench.errors import BenchError


@contextmanager
def yaml_of(path: Path) -> Iterator[str]:
    """The text of a file. Parse it inside the block.

    Raises:
        BenchError: the file cannot be read, or what the block parses is not YAML.
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
        raise BenchError(f"{path}{line}: not YAML: {yaml_fault(error)}") from error


def yaml_fault(error: yaml.YAMLError) -> str:
    """What is wrong, in one line."""
    return str(getattr(error, "problem", None) or error).partition("\n")[0]
