"""One run as a YAML file: ``continuum-bench run FILE`` reads it, and ``--print-config`` writes it.

``workload`` is swebench, bfcl, openhands or a trace file. Every other key is an option of these commands, named as on
the command line, with ``_`` or ``-``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
import yaml
from continuum_server.policy.catalog import PolicyError
from continuum_server.vllm_plugin.versions import PluginError
from continuum_traces.names import near, which

from continuum_bench.errors import BenchError
from continuum_bench.option_values import check_value
from continuum_bench.options.declare import OptionError, hints_of, is_set, spelling
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import DEFAULT_POLICIES, LiveOptions, RunOptions
from continuum_bench.options.together import faults, options_of
from continuum_bench.yaml_files import yaml_fault, yaml_of

WORKLOADS = ("swebench", "bfcl", "openhands")
REPLAY = "replay"
_HINTS = {**hints_of(RunOptions), **hints_of(LiveOptions)}
KEYS = {
    spelling(name, hint).removeprefix("--").replace("-", "_"): name
    for name, hint in _HINTS.items()
    if name != "print_config"
}
"""The option's name in the file, and the field that holds it."""


@dataclass(frozen=True, slots=True)
class ExperimentFile:
    workload: str
    """The command: swebench, bfcl, openhands or replay."""
    options: RunOptions
    live: LiveOptions


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> ExperimentFile:
    """Read a file, and replace its values by those of ``NAME=VALUE``.

    Raises:
        BenchError: an invalid file or value; the message names the file, the line and the key.
    """
    entries = {entry.key: entry for entry in [*_entries(path), *map(_override, overrides)]}
    name, traces = _workload(entries.pop("workload", None), path.parent)
    if "traces" in entries:
        traces = _trace(entries.pop("traces"), path.parent)
    fields = {KEYS[key]: _value(entry) for key, entry in entries.items()}
    of_live = {field: fields.pop(field) for field in hints_of(LiveOptions) if field in fields}
    found = ExperimentFile(name, RunOptions(traces=traces, **fields), LiveOptions(**of_live))
    where = {KEYS[key]: entry.where for key, entry in entries.items()}
    for field, fault in faults({**options_of(found.options), **options_of(found.live)}):
        raise BenchError(f"{where[field]}: {fault}")
    try:
        read_policy_options(found.options.policy_option or (), arms_of(found.options.policy or DEFAULT_POLICIES))
    except (OptionError, PluginError, PolicyError) as error:
        raise BenchError(f"{where['policy_option']}: {str(error).removeprefix('--policy-option ')}") from error
    return found


def experiment_yaml(workload: str, options: RunOptions, live: LiveOptions) -> str:
    """The file that ``read_experiment`` reads as these options: every option that has a value, including defaults."""
    given = {field: getattr(options, field) for field in hints_of(RunOptions)}
    given |= {field: getattr(live, field) for field in hints_of(LiveOptions)} if live.base_url is not None else {}
    values = {key: given[field] for key, field in KEYS.items() if is_set(given.get(field))}
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
    if not equals:
        raise BenchError(f"--set {text}: expected NAME=VALUE")
    key = _known(name.strip(), f"--set {text}")
    try:
        return _Entry(f"--set {text}", key, yaml.safe_load(value))
    except yaml.YAMLError as error:
        raise BenchError(f"--set {text}: not YAML: {yaml_fault(error)}") from error


def _entries(path: Path) -> Iterator[_Entry]:
    """The options in the file, in the order in which they stand there, each with its line number."""
    with yaml_of(path) as text:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise BenchError(f"{path}: expected a mapping of options to values")
        rows = [(key, loader.construct_object(value, deep=True)) for key, value in root.value]
    seen: set[str] = set()
    for node, value in rows:
        where = f"{path}:{node.start_mark.line + 1}: {node.value}"
        key = _known(str(node.value), where)
        if key in seen:
            raise BenchError(f"{where}: is there twice")
        seen.add(key)
        yield _Entry(where, key, value)


def _known(name: str, where: str) -> str:
    key = name.replace("-", "_")
    if key != "workload" and key not in KEYS:
        hint = near(key, ["workload", *KEYS]) or "`continuum-bench replay --help` lists the options"
        raise BenchError(f"{where}: no such option; {hint.strip()}")
    return key


def _value(entry: _Entry) -> Any:
    """The value as the option's type, within its limit."""
    field = KEYS[entry.key]
    hint = _HINTS[field]
    given = _as_text(entry.value, hint)
    try:
        value = msgspec.convert(given, hint, dec_hook=lambda kind, text: kind(text))
    except (msgspec.ValidationError, TypeError) as error:
        wanted = str(error).removeprefix("Expected `").partition("`")[0].replace(" | null", "")
        raise BenchError(f"{entry.where}: {given!r} is no value of this option; expected {wanted}") from error
    check_value(field, value, hint, entry.where)
    return value


def _as_text(value: Any, hint: Any) -> Any:
    """A number where the option takes text, and one text where it takes several, as a command line has them."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    kinds = get_args(plain) or (plain,)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    if list[str] in kinds:
        return [str(value)]
    return str(value) if str in kinds else value


def _workload(entry: _Entry | None, folder: Path) -> tuple[str, Path | None]:
    """The command, and the trace that it replays."""
    if entry is None or entry.value in WORKLOADS:
        return WORKLOADS[0] if entry is None else str(entry.value), None
    return REPLAY, _trace(entry, folder, f", nor a workload; {which(entry.value, WORKLOADS)}")


def _trace(entry: _Entry, folder: Path, or_what: str = "") -> Path:
    """A file beside the experiment's, or in the working directory."""
    beside = [path for path in (folder / str(entry.value), Path(str(entry.value))) if path.is_file()]
    if not beside:
        raise BenchError(f"{entry.where}: {entry.value!r} is no file{or_what}")
    return beside[0]
