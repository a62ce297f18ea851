"""Trace files of every known format. The format is named, or recognised from the file."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from continuum_traces.importers.bfcl import read_bfcl
from continuum_traces.importers.mini_swe import read_mini_swe
from continuum_traces.importers.numeric import read_numeric
from continuum_traces.importers.openhands import read_openhands
from continuum_traces.importers.serving import read_agentic_mooncake, read_mlperf_agentic, read_mooncake, read_weka
from continuum_traces.importers.terminal_bench import read_terminal_bench
from continuum_traces.jsonl import TraceError, read_programs, text_lines
from continuum_traces.schema import TRACE_SCHEMA, Program

OWN = "continuum"

READERS: dict[str, Callable[[Path], Iterator[Program]]] = {
    OWN: read_programs,
    "numeric": read_numeric,
    "mini-swe-agent": read_mini_swe,
    "openhands": read_openhands,
    "terminal-bench": read_terminal_bench,
    "bfcl": read_bfcl,
    "mooncake": read_mooncake,
    "agentic-mooncake": read_agentic_mooncake,
    "weka": read_weka,
    "mlperf-agentic": read_mlperf_agentic,
}
"""Format name to reader."""

_MARKS: tuple[tuple[str, frozenset[str]], ...] = (
    ("numeric", frozenset({"program_id", "prompt_tokens", "output_tokens"})),
    ("openhands", frozenset({"history", "instance_id"})),
    ("terminal-bench", frozenset({"schema_version", "steps"})),
    ("bfcl", frozenset({"id", "input_token_count", "output_token_count"})),
    ("agentic-mooncake", frozenset({"request_id", "session_id", "input_length", "output_length"})),
    ("mooncake", frozenset({"input_length", "output_length"})),
    ("weka", frozenset({"requests"})),
    ("mlperf-agentic", frozenset({"conversation_id", "role"})),
    ("mini-swe-agent", frozenset({"messages", "trajectory_format"})),
    ("mini-swe-agent", frozenset({"messages", "info"})),
)
"""Fields by which a format is recognised, the most specific first."""


def read_any(path: Path, form: str | None = None) -> Iterator[Program]:
    """The programs of a file in any known format.

    Args:
        path: the file or directory.
        form: a key of ``READERS``; None: recognise it.

    Raises:
        TraceError: unknown or unrecognised format, or a fault in the file.
    """
    name = form or detect(path)
    if name not in READERS:
        raise TraceError(f"{path}: unknown format {name!r}; there are: {', '.join(READERS)}")
    return READERS[name](path)


def detect(path: Path) -> str:
    """The format of a file, from its kind and its first line.

    Raises:
        TraceError: no format fits.
    """
    if path.is_dir() or (path.is_file() and _is_archive(path)):
        return "mini-swe-agent"
    if path.suffix == ".xz":
        return "openhands"
    name = _by_fields(_first_object(path))
    if name is None:
        raise TraceError(f"{path}: format not recognised; name it with --format: {', '.join(READERS)}")
    return name


def _is_archive(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, lzma.LZMAError):
        return False


def _first_object(path: Path) -> Any:
    """The first line as JSON; the whole file if it is one object on several lines."""
    for _, line in text_lines(path):
        if line.strip():
            try:
                return json.loads(line)
            except ValueError:
                break
    if path.suffix == ".json":
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    return None


def _by_fields(data: Any) -> str | None:
    if not isinstance(data, dict):
        return None
    if data.get("schema") == TRACE_SCHEMA or data.get("kind") in ("header", "program"):
        return OWN
    return next((name for name, fields in _MARKS if fields <= set(data)), None)
