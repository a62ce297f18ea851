"""Experiment files (YAML): ``continuum-bench run FILE`` reads one, and ``--print-config`` writes one.

The key ``workload`` is swebench, bfcl, openhands or a trace file. Every other key is an option of these commands with
its name on the command line, written with ``_`` or ``-``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from continuum_server.policy.registry import PolicyError
from continuum_server.vllm_plugin.versions import PluginError
from continuum_traces.names import near, which

from continuum_bench.errors import BenchError, OptionError
from continuum_bench.option_values import read_value
from continuum_bench.options.declare import declared, is_set
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import DEFAULT_POLICIES, WORKLOADS, LiveOptions, RunOptions
from continuum_bench.options.together import faults
from continuum_bench.yaml_files import yaml_of, yaml_value

REPLAY = "replay"
KEYS = {
    option.spelling.removeprefix("--").replace("-", "_"): option
    for option in (*declared(RunOptions).values(), *declared(LiveOptions).values())
    if option.name != "print_config"
}
"""Maps a key of the file to the option's declaration."""


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    workload: str
    """The command: swebench, bfcl, openhands or replay."""
    options: RunOptions
    live: LiveOptions


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> ExperimentFile:
    """Read a file, and replace its values by ``overrides`` (``NAME=VALUE``).

    Raises:
        BenchError: an invalid file or value; the message names the file, the line and the key.
    """
    entries = {entry.key: entry for entry in [*_entries(path), *map(_override, overrides)]}
    name, traces = _workload(entries.pop("workload", None), path.parent)
    if "traces" in entries:
        name, traces = _workload(entries.pop("traces"), path.parent)
    values = {KEYS[key].name: read_value(KEYS[key], entry.value, entry.where) for key, entry in entries.items()}
    of_live = {field: values.pop(field) for field in declared(LiveOptions) if field in values}
    experiment = ExperimentFile(name, RunOptions(traces=traces, **values), LiveOptions(**of_live))
    where = {KEYS[key].name: entry.where for key, entry in entries.items()}
    for option, fault in faults(experiment.options, experiment.live):
        raise BenchError(f"{where[option.name]}: {fault}")
    try:
        policies = arms_of(experiment.options.policy or DEFAULT_POLICIES)
        read_policy_options(experiment.options.policy_option or (), policies)
    except (OptionError, PluginError, PolicyError) as error:
        raise BenchError(f"{where['policy_option']}: {str(error).removeprefix('--policy-option ')}") from error
    return experiment


def experiment_yaml(workload: str, options: RunOptions, live: LiveOptions) -> str:
    """Return the text of a file that ``read_experiment`` reads as these options, with defaults written out."""
    groups = [options] if live.base_url is None else [options, live]
    given = {name: getattr(group, name) for group in groups for name in declared(type(group))}
    values = {key: given[option.name] for key, option in KEYS.items() if is_set(given.get(option.name))}
    if "policy" in values:
        values["policy"] = arms_of(values["policy"])
    whole = {"workload": values.pop("traces") if workload == REPLAY else workload, **values}
    return "".join(["# continuum-bench run FILE\n", *(_line(key, value) for key, value in whole.items())])


def _line(key: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{key}: {yaml.safe_dump(value, default_flow_style=True, width=10_000)}"
    plain = str(value) if isinstance(value, Path) else value
    return str(yaml.safe_dump({key: plain}, default_flow_style=False, width=10_000))


@dataclass(frozen=True, slots=True)
class _Entry:
    where: str
    key: str
    value: Any


def _override(text: str) -> _Entry:
    name, equals, value = text.partition("=")
    if not (equals and value.strip()):
        raise BenchError(f"--set {text}: expected NAME=VALUE; null is the default")
    key = _key(name.strip(), f"--set {text}")
    return _Entry(f"--set {text}", key, yaml_value(value, f"--set {text}"))


def _entries(path: Path) -> Iterator[_Entry]:
    """Yield the options of the file in their order, each with its line number."""
    with yaml_of(path) as text:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise BenchError(f"{path}: expected a mapping of options to values")
        rows = [(key, loader.construct_object(value, deep=True)) for key, value in root.value]
    seen: set[str] = set()
    for node, value in rows:
        where = f"{path}:{node.start_mark.line + 1}: {node.value}"
        key = _key(str(node.value), where)
        if key in seen:
            raise BenchError(f"{where}: is given twice")
        seen.add(key)
        yield _Entry(where, key, value)


def _key(name: str, where: str) -> str:
    key = name.replace("-", "_")
    if key != "workload" and key not in KEYS:
        hint = near(key, ["workload", *KEYS]) or "`continuum-bench replay --help` lists the options"
        raise BenchError(f"{where}: no such option; {hint.strip()}")
    return key


def _workload(entry: _Entry | None, folder: Path) -> tuple[str, Path | None]:
    """Return the command, and the trace file if the command is ``replay``."""
    workload = WORKLOADS[0] if entry is None else find_workload(entry.value, folder, entry.where)
    return (REPLAY, workload) if isinstance(workload, Path) else (workload, None)


def find_workload(value: object, folder: Path, where: str) -> str | Path:
    """Return the name of a bundled workload, or the path of a trace in ``folder`` or in the working directory."""
    if value in WORKLOADS:
        return str(value)
    trace = next((path for path in (folder / str(value), Path(str(value))) if path.exists()), None)
    if trace is None:
        raise BenchError(f"{where}: {value!r} is no file, nor a workload; {which(value, WORKLOADS)}")
    return trace
