"""The user's own models and tables (``continuum-bench step-times build``), which are files in the user's cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import write_json, writing

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
    return save_table(f"{model.name}{MODEL_SUFFIX}", asdict(model))


def find_table(name: str) -> Mapping[str, Any] | None:
    """Return the table with that file name; None: there is none."""
    file = user_folder() / name
    return read_file(file, dict[str, Any], StepTimesError) if file.is_file() else None


def save_table(name: str, content: Mapping[str, Any]) -> Path:
    """Write a table, or another file of the user's.

    Raises:
        RunDirError: the file cannot be written.
    """
    file = user_folder() / name
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, content, indent=None)
    return file
