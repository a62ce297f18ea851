"""``continuum-bench agent bfcl``: run BFCL's web-search entries as a batch, scored by BFCL's own evaluator."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from continuum_agents.protocol import LIVE
from continuum_agents.recorded_web import read_web
from continuum_traces.names import which
from msgspec import Meta, Struct

from continuum_bench.agents.batch import environment_for, run_batch
from continuum_bench.agents.environment import Environment
from continuum_bench.agents.results import Results
from continuum_bench.agents.runner import Work
from continuum_bench.agents.tasks import Task
from continuum_bench.errors import BenchError
from continuum_bench.json_files import documents, objects, read_as
from continuum_bench.options.agent import BfclOptions
from continuum_bench.show import print_notice

ENTRIES = "BFCL_v4_web_search.json"
BOTH = ("web_search_base", "web_search_no_snippet")
CATEGORIES = {**{name: (name,) for name in BOTH}, "web_search": BOTH}
"""The names that ``--category`` accepts, and BFCL's categories that each stands for."""
KEY_VARIABLE = "SERPAPI_API_KEY"
SCORER = "continuum_agents.bfcl_score"


def run_bfcl(options: BfclOptions) -> int:
    """Play, record and score the entries. Returns the exit code, as ``run_batch``."""
    environment = environment_for(options)
    entries = (options.tasks or _installed_data(environment.python)) / ENTRIES
    work = Work(
        config=_config(options),
        tasks=read_entries(entries, options.category, options.part),
        answers=True,
        scored=True,
        conclude=lambda results: _score(environment, results, options),
        facts={"category": options.category, "slice": options.part, "web": _web_facts(options.web)},
    )
    return run_batch(options, environment, entries, work)


def _installed_data(python: Path) -> Path:
    """Return the folder of the entries in the bfcl-eval package."""
    folders = sorted(python.parents[1].glob("lib/python*/site-packages/bfcl_eval/data"))
    if not folders:
        raise BenchError(
            f"{python.parents[1]}: no bfcl_eval in it; make it again: continuum-bench agent setup bfcl --anew"
        )
    return folders[-1]


# ------------------------------------------------------------------------------------------- the entries


class _Message(Struct):
    content: str


class _Entry(Struct):
    """A line of BFCL's file."""

    id: Annotated[str, Meta(pattern=r"^web_search_[0-9]+\Z")]
    involved_classes: tuple[Literal["WebSearchAPI"]]
    question: Annotated[list[Annotated[list[_Message], Meta(min_length=1)]], Meta(min_length=1)]
    """Turns, each a list of messages."""


def read_entries(path: Path, category: str, part: str = ":") -> list[Task]:
    """Read BFCL's entries as tasks. Their ids are those that BFCL uses in the category.

    Args:
        path: file of lines in BFCL's format.
        category: one of ``CATEGORIES``.
        part: START:STOP, the range of lines.

    Raises:
        BenchError: an invalid line; the message names the file, the line and the field.
    """
    if category not in CATEGORIES:
        raise BenchError(f"--category {category}: {which(category, CATEGORIES)}")
    entries = [read_as(where, data, _Entry) for where, data in objects(documents(path))][_slice(part)]
    if not entries:
        raise BenchError(f"--slice {part}: {path} has no entry there")
    return [
        Task(entry.id.replace("web_search", name), entry.question[0][-1].content)
        for name in CATEGORIES[category]
        for entry in entries
    ]


def _slice(part: str) -> slice:
    numbers = re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", part)
    if numbers is None:
        raise BenchError(f"--slice {part}: expected START:STOP")
    return slice(*(number and int(number) for number in numbers.groups()))


# --------------------------------------------------------------------------------------- the agent's side


def _config(options: BfclOptions) -> tuple[str, ...]:
    """Return the configuration of the agents' processes, with absolute paths."""
    if options.web == LIVE and not os.environ.get(KEY_VARIABLE):
        raise BenchError(f"--web live: searches through SerpAPI, whose key is to be in {KEY_VARIABLE}; or --web FILE")
    if options.web != LIVE:
        read_web(Path(options.web))  # a fault is shown before anything runs
    settings = {
        "web": options.web if options.web == LIVE else str(Path(options.web).absolute()),
        "record_web": None if options.record_web is None else str(options.record_web.absolute()),
        "data": None if options.tasks is None else str(options.tasks.absolute()),
        "temperature": f"{options.temperature:g}",
        "prompting": str(options.prompting),
    }
    return tuple(f"{name}={value}" for name, value in settings.items() if value is not None)


def _web_facts(web: str) -> dict[str, str]:
    if web == LIVE:
        return {"kind": LIVE}
    return {"kind": "recorded", "file": Path(web).name, "sha256": hashlib.sha256(Path(web).read_bytes()).hexdigest()}


# ---------------------------------------------------------------------------------------------- the score


def _score(environment: Environment, results: Results, options: BfclOptions) -> None:
    """Write BFCL's files of results and scores, and print the score."""
    batch = {
        "out": str(results.out),
        "model": results.model,
        "data": None if options.tasks is None else str(options.tasks.absolute()),
        "prompting": options.prompting,
    }
    try:
        output = environment.run(SCORER, asked="BFCL's scorer", stdin=json.dumps(batch))
    except BenchError as error:
        print_notice(str(error))
        return
    heads = output.splitlines()[-1]  # bfcl-eval prints other lines while it is imported
    for category, head in json.loads(heads).items():
        print_notice(f"BFCL's scorer, {category}: {head['correct_count']} of {head['total_count']} right")
