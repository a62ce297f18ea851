"""What a user of this project can see, as JSON: commands and options, files of a run, tables, wire forms, metric names.

``python tests/golden/surface.py`` writes the golden files beside this script anew. Do that only when what users see is
meant to change, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
import shlex
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from continuum_bench.cli import app
from continuum_server.policy.registry import POLICIES as ALL_POLICIES
from continuum_server.vllm_plugin.metrics import KEYS, Metrics, prometheus_text
from continuum_traces.schema import Tags
from typer.testing import CliRunner

from continuum_client.dialects import DIALECTS
from continuum_client.tagging import tag_body, tag_headers

HERE = Path(__file__).parent
RUN = ["swebench", "--num-programs", "4", "--jps", "0.5", "--kv-blocks", "8192", "--no-report"]
POLICIES = "vllm,program-fcfs,static-ttl,continuum,working-set"
WIDE = 30
"""Columns of a CSV above which each is a line of the golden file."""
NUMBERS = ("jct_mean_s", "prefix_hit_ratio")
TAGS = Tags(
    program_id="p-1",
    is_last_step=True,
    pred_tool="bash",
    pred_tool_s=1.5,
    pred_tool_p90_s=9.0,
    last_func_call="ls",
    last_tool_duration_s=0.25,
    parent_id="p-0",
    turn_id="t-7",
)


def commands() -> dict[str, Any]:
    """Every command's options: names, type, default, whether it repeats, the panel of ``--help``."""
    found: dict[str, Any] = {}

    def visit(path: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                visit(f"{path} {name}".strip(), inner)
        else:
            found[path] = {option.name: _option(option) for option in command.params if option.name != "help"}

    visit("", typer.main.get_command(app))
    return found


def _option(option: Any) -> str:
    """One line: ``--jps float =0.13 [Workload]``."""
    names = "/".join([*option.opts, *option.secondary_opts])
    repeats = "..." if getattr(option, "multiple", False) or option.nargs != 1 else ""
    kind = getattr(option.bare_type(), "__name__", option.bare_type())
    default = "required" if option.required else f"={option.default!s}"
    least = getattr(option, "min", None)
    bound = "" if least is None else f" >={least}"
    return f"{names} {kind}{repeats} {default}{bound} [{getattr(option, 'rich_help_panel', None)}]"


def run_files() -> dict[str, Any]:
    """Files of a small experiment, the keys of each, and two numbers of each policy."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        done = CliRunner().invoke(app, [*RUN, "--policy", POLICIES, "--out", str(out)])
        assert done.exit_code == 0, done.output
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return {
            "files": [str(path.relative_to(out)) for path in files],
            "keys": {name: sorted(keys) for name, keys in sorted(_keys_of_files(files).items())},
            "numbers": {
                f"{policy}.{name}": measured[name]
                for policy, measured in json.loads((out / "summary.json").read_text())["policies"].items()
                for name in NUMBERS
            },
        }


def _keys_of_files(files: list[Path]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in files:
        if path.suffix == ".json":
            found.setdefault(path.name, set()).update(_keys(json.loads(path.read_text())))
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines():
                found.setdefault(path.name, set()).update(_keys(json.loads(line)))
        elif path.suffix == ".csv":
            found.setdefault(path.name, set()).update(path.read_text().splitlines()[0].split(","))
    return found


def _keys(value: Any, path: str = "") -> set[str]:
    """Paths of all keys; ``*`` is the name of a policy, names of counted things stand for themselves."""
    if isinstance(value, Mapping):
        named = {f"{path}.{'*' if key in POLICIES.split(',') else key}".lstrip("."): key for key in value}
        return set(named).union(*(_keys(value[key], name) for name, key in named.items()))
    if isinstance(value, list):
        return set().union(*(_keys(inner, f"{path}[]") for inner in value))
    return set()


def tables() -> dict[str, list[str]]:
    """What commands print of the runs beside this script; the commands are those of the golden file."""
    found = {}
    with chdir(HERE / "recorded"):
        for command in golden("tables"):
            done = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "160"})
            found[command] = [*_upright(done.output), f"exit code {done.exit_code}"]
    return found


def _upright(text: str) -> list[str]:
    """Lines of a text; of a wide CSV one line for each column, so that a diff shows what changed."""
    rows = list(csv.reader(text.splitlines()))
    if len(rows) < 2 or {len(row) for row in rows} != {len(rows[0])} or len(rows[0]) <= WIDE:
        return text.splitlines()
    return [": ".join(column) for column in zip(*rows, strict=True)]


def wire() -> dict[str, Any]:
    """Headers and the body's additions of one fully tagged request, for each dialect and route."""
    routes = ("/chat/completions", "/completions", "/responses")
    bodies = {
        name: {route: tag_body(TAGS, dialect, route, 64) for route in routes} for name, dialect in DIALECTS.items()
    }
    return {"headers": tag_headers(TAGS), "bodies": bodies}


_KEY = {"key": "none", **dict.fromkeys(KEYS, 0.0)}


def metrics() -> dict[str, str]:
    """Families of ``/metrics`` under a policy that has them all, and the kind of each; before any request came."""
    gauges = {
        name: {"value": 0, "help": text} for policy in ALL_POLICIES.values() for name, text in policy.gauges.items()
    }
    counted = defaultdict(int, Metrics().to_json())
    state: dict[str, Any] = defaultdict(int, {"gauges": gauges, "metrics": counted, "keys": [_KEY]})
    return dict(sorted(re.findall(r"^# TYPE (continuum:\w+) (\w+)$", prometheus_text([state]), flags=re.M)))


MODULES = (
    *("continuum_client", "continuum_traces.schema", "continuum_traces.programs.jsonl"),
    *("continuum_traces.records.run_dir", "continuum_traces.records"),
    *("continuum_server.policy.base", "continuum_server.policy.facts", "continuum_analysis.metrics"),
)
"""The modules that docs/stability.md calls stable."""


def api() -> dict[str, Any]:
    """The public names of stable modules: the parameters of functions, the public attributes of classes."""
    return {name: {key: _shape(value) for key, value in public(import_module(name))} for name in MODULES}


def public(module: ModuleType) -> list[tuple[str, Any]]:
    """What ``__all__`` names, or else the functions and classes that the module defines."""
    names = getattr(module, "__all__", None) or [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value)
    ]
    return [(name, getattr(module, name)) for name in sorted(names)]


def _shape(value: Any) -> Any:
    if inspect.isclass(value):
        own = [key for each in value.__mro__ if each.__module__.startswith("continuum_") for key in vars(each)]
        return sorted({key for key in own if not key.startswith("_")})
    return list(inspect.signature(value).parameters)


SURFACES: dict[str, Callable[[], dict[str, Any]]] = {
    "commands": commands,
    "run_files": run_files,
    "tables": tables,
    "wire": wire,
    "metrics": metrics,
    "api": api,
}


def golden(name: str) -> dict[str, Any]:
    return dict(json.loads((HERE / f"{name}.json").read_text()))


def as_json(surface: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(surface)))


if __name__ == "__main__":
    for name, surface in SURFACES.items():
        (HERE / f"{name}.json").write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n")
