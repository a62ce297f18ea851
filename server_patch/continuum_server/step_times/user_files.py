"""The user's own models and tables (``continuum-bench step-times build``), which are files in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from continuum_server.cache import default_cache
from continuum_server.step_times.json_file import read_file
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.specs import Model

MODEL_SUFFIX = ".model.json"


def user_folder() -> Path:
    return default_cache() / "step-times"


def user_models() -> Iterator[Model]:
    """Yield the user's models.

    Raises:
        StepTimesError: a file is not the description of a model. The message names the file.
    """
    for file in sorted(user_folder().glob(f"*{MODEL_SUFFIX}")):
        yield read_file(file, Model, StepTimesError)


def save_model(model: Model) -> Path:
    return _write(f"{model.name}{MODEL_SUFFIX}", msgspec.json.encode(asdict(model)))


def find_table(name: str) -> Mapping[str, Any] | None:
    """Return the table with that file name; None: there is none."""
    file = user_folder() / name
    return read_file(file, dict[str, Any], StepTimesError) if file.is_file() else None


def save_table(name: str, text: str) -> Path:
    return _write(name, text.encode())


def _write(name: str, content: bytes) -> Path:
    file = user_folder() / name
    temporary = file.with_name(f"{name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(file)
    except OSError as error:
        raise StepTimesError(f"{file}: cannot write: {error.strerror}") from error
    return file
