"""Reads the grid of a sweep from YAML or ``--set AXIS=A,B``. Every error message names the file and the field."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from continuum_server.policy.registry import PolicyError, split_arm
from continuum_server.vllm_plugin.versions import PluginError
from continuum_traces.names import near, which

from continuum_bench.errors import BenchError
from continuum_bench.option_values import read_value
from continuum_bench.options.declare import declared
from continuum_bench.options.policies import checked_options
from continuum_bench.options.run import (
    DEFAULT_POLICIES,
    WORKLOADS,
    ArmOptions,
    ArrivalOptions,
    EngineOptions,
    OutputOptions,
    RunOptions,
    TraceOptions,
)
from continuum_bench.yaml_files import beside, yaml_of, yaml_value

ENGINES = ("virtual", "emulated", "cpu", "gpu")
OF_THE_SWEEP = {"traces", "form", *declared(ArmOptions), *declared(OutputOptions)}
"""Run options that are no axis: a grid has other words for them, or the sweep sets them."""
COLUMNS = (
    *("jps", *declared(EngineOptions), *RunOptions.__annotations__),
    *(*declared(TraceOptions), *declared(ArrivalOptions)),
)
"""Run options in the order in which tables show them."""
AXES = {name: declared(RunOptions)[name] for name in dict.fromkeys(COLUMNS) if name not in OF_THE_SWEEP}
"""Run options that a grid may range over."""
ONLY_VIRTUAL = ("pp", "offload", "replicas", "router")
"""Axes that only the virtual engine has."""
CASE_WORDS = ("policy", "seed", "seeds", "workload", *AXES)
"""Keys of a grid that a case may have too."""
WORDS = ("name", "engine", "cases", "serve", "plot", *CASE_WORDS)


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy with its options, and the label for tables."""

    label: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the grid. Every arm is played on it with every seed."""

    axes: Mapping[str, Any]
    """The values that the grid gives, by axis; ``workload`` is one of the axes."""
    options: RunOptions
    workload: str
    """swebench, bfcl, openhands, or the name of a trace file."""
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    name: str
    engine: str
    """One of ``ENGINES``, or the URL of a running server, up to /v1."""
    points: tuple[Point, ...]
    serve: Mapping[str, Any]
    """For engines other than virtual: further options of ``continuum-bench serve``."""
    plot: Mapping[str, Any]
    """Settings of the plot (``continuum_analysis.sweep.plots.Plot``)."""


def read_grid(path: Path | None, overrides: Sequence[str] = ()) -> Grid:
    """Read a grid from a YAML file and replace axes by ``overrides`` (``AXIS=A,B``).

    Raises:
        BenchError: the grid is invalid; the message names the file and the field.
    """
    raw, where, folder = _load(path), str(path) if path else "--set", path.parent if path else Path()
    if path is None and not overrides:
        raise BenchError("sweep: give a grid: a YAML file, or --set AXIS=A,B")
    return grid_of(raw, where, folder, path.stem if path else "sweep", overrides)


def read_override(text: str) -> tuple[str, Any]:
    """Split ``AXIS=A,B`` into the axis and its value or values."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise BenchError(f"--set {text}: expected AXIS=VALUE or AXIS=A,B")
    parts = [yaml_value(part, f"--set {text}") for part in values.split(",")]
    return name.strip().replace("-", "_"), parts if len(parts) > 1 else parts[0]


def _load(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    with yaml_of(path) as text:
        grid = yaml.safe_load(text)
    if not isinstance(grid, dict):
        raise BenchError(f"{path}: expected a mapping of axes to values")
    return grid


def grid_of(raw: Mapping[str, Any], where: str, folder: Path, name: str, overrides: Sequence[str] = ()) -> Grid:
    """Make a grid from a mapping. An axis of ``overrides`` (``AXIS=A,B``) replaces that axis, also in every case.

    Raises:
        BenchError: the grid is invalid; the message names ``where`` and the field.
    """
    given = dict(read_override(text) for text in overrides)
    raw = put_over(raw, given)
    _known_words(raw, where)
    engine = raw.get("engine", "virtual")
    if engine not in ENGINES and not is_url(engine):
        raise BenchError(f"{where}: engine: {engine!r}; {which(engine, ENGINES)}, and the URL of a server, up to /v1")
    for word in ("serve", "plot"):
        if not isinstance(raw.get(word, {}), dict):
            raise BenchError(f"{where}: {word}: expected a mapping")
    common = {key: value for key, value in raw.items() if key in CASE_WORDS}
    points = [point for case, at in _cases(raw, where) for point in _points(put_over(common, case, given), at, folder)]
    for point in points:
        _plays_on(engine, point, where)
    return Grid(
        name=str(raw.get("name", name)),
        engine=engine,
        points=tuple(points),
        serve=dict(raw.get("serve", {})),
        plot=dict(raw.get("plot", {})),
    )


def is_url(engine: object) -> bool:
    return str(engine).startswith(("http://", "https://"))


def _plays_on(engine: str, point: Point, where: str) -> None:
    """Refuse a point with options that the engine would ignore."""
    if engine == "virtual":
        return
    if is_url(engine) and len(point.arms) > 1:
        raise BenchError(f"{where}: engine {engine}: give the one policy that this server runs (--set policy=NAME)")
    given = [name for name in ONLY_VIRTUAL if name in point.axes]
    given += [f"policy: {arm.policy}" for arm in point.arms if split_arm(arm.policy)[1]]
    if given:
        raise BenchError(
            f"{where}: {given[0]}: only for engine virtual; other engines play a cell on one server without tiers"
        )


def put_over(raw: Mapping[str, Any], given: Mapping[str, Any], fixed: Collection[str] = ()) -> dict[str, Any]:
    """Replace keys of ``raw`` by those of ``given``, except ``fixed`` keys. ``seed`` and ``seeds`` count as one key."""
    seeds = {"seed", "seeds"}
    not_replaced = {*fixed, *(seeds if seeds & set(fixed) else ())}
    kept = {word: value for word, value in given.items() if word not in not_replaced}
    replaced = seeds if seeds & set(kept) else set()
    return {word: value for word, value in raw.items() if word not in replaced} | kept


def _known_words(raw: Mapping[Any, Any], where: str) -> None:
    for word in raw:
        if word not in WORDS:
            raise BenchError(f"{where}: {word}: unknown; {near(word, WORDS)}a grid has {', '.join(WORDS)}")


def _cases(raw: Mapping[str, Any], where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    cases = raw.get("cases", [{}])
    if not isinstance(cases, list) or not cases:
        raise BenchError(f"{where}: cases: expected a list of mappings")
    for number, case in enumerate(cases):
        at = f"{where}: cases[{number}]" if "cases" in raw else where
        if not isinstance(case, dict):
            raise BenchError(f"{at}: expected a mapping of axes to values")
        for word in case:
            if word not in CASE_WORDS:
                raise BenchError(f"{at}: {word}: unknown in a case; {which(word, CASE_WORDS)}")
        yield case, at


def _points(raw: Mapping[str, Any], where: str, folder: Path) -> Iterator[Point]:
    arms, seeds = _arms(raw, where), _seeds(raw, where)
    axes: dict[str, list[Any]] = {"workload": _workloads(raw, where, folder)}
    for name in AXES:
        if name in raw:
            at = f"{where}: {name}"
            axes[name] = [read_value(AXES[name], value, at) for value in _listed(raw[name], at)]
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        workload = point.pop("workload")
        traces = workload if isinstance(workload, Path) else None
        name = traces.name.split(".")[0] if traces else workload
        yield Point({"workload": name, **point}, RunOptions(traces=traces, **point), name, arms, seeds)


def _listed(value: Any, where: str) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BenchError(f"{where}: an empty list")
    for number, item in enumerate(values):
        if item in values[:number]:
            raise BenchError(f"{where}: {item!r} is given twice")
    return values


def _workloads(raw: Mapping[str, Any], where: str, folder: Path) -> list[str | Path]:
    """Return names of bundled workloads, and paths of trace files beside the grid or in the working directory."""
    workloads: list[str | Path] = []
    for value in _listed(raw.get("workload", "swebench"), f"{where}: workload"):
        workload = value if value in WORKLOADS else beside(folder, value)
        if workload is None:
            raise BenchError(f"{where}: workload: {value!r} is no file, nor one of {', '.join(WORKLOADS)}")
        workloads.append(workload)
    names = [path.name.split(".")[0] for path in workloads if isinstance(path, Path)]
    if len(set(names)) < len(names):
        raise BenchError(f"{where}: workload: two traces of one name ({', '.join(names)})")
    return workloads


def _seeds(raw: Mapping[str, Any], where: str) -> tuple[int, ...]:
    if "seed" in raw and "seeds" in raw:
        raise BenchError(f"{where}: seeds: give seed (which) or seeds (how many), not both")
    if "seed" in raw:
        return tuple(_whole(value, 0, f"{where}: seed") for value in _listed(raw["seed"], f"{where}: seed"))
    numbers = _listed(raw.get("seeds", 1), f"{where}: seeds")
    return tuple(range(_whole(numbers[0] if len(numbers) == 1 else numbers, 1, f"{where}: seeds")))


def _whole(value: Any, least: int, where: str) -> int:
    if type(value) is not int or value < least:
        raise BenchError(f"{where}: {value!r} is not a whole number of at least {least}")
    return int(value)


def _arms(raw: Mapping[str, Any], where: str) -> tuple[Arm, ...]:
    at = f"{where}: policy"
    given = _listed(raw.get("policy", list(DEFAULT_POLICIES)), at)
    arms = tuple(_arm(value, f"{at}[{number}]" if len(given) > 1 else at) for number, value in enumerate(given))
    labels = [arm.label for arm in arms]
    for label in labels:
        if labels.count(label) > 1:
            raise BenchError(f"{at}: {label!r} is given twice; give one of them a label")
    return arms


def _arm(value: Any, where: str) -> Arm:
    """Read a policy's name, or ``{policy: NAME, options: {...}, label: TEXT}``."""
    if isinstance(value, str):
        value = {"policy": value}
    if not isinstance(value, dict) or not isinstance(value.get("policy"), str):
        raise BenchError(f"{where}: expected a policy's name, or policy, options and label")
    unknown = sorted(set(value) - {"policy", "options", "label"})
    if unknown:
        raise BenchError(f"{where}: {unknown[0]}: unknown; an arm has policy, options, label")
    options, label = value.get("options", {}), value.get("label")
    if not isinstance(options, dict):
        raise BenchError(f"{where}: options: expected a mapping")
    try:
        read = checked_options(value["policy"], options)
    except (PluginError, PolicyError) as error:
        raise BenchError(f"{where}: {error}") from error
    extra = ",".join(f"{key}={option}" for key, option in read.items())
    name = str(label or (f"{value['policy']}({extra})" if extra else value["policy"]))
    if "/" in name or name.startswith("."):
        raise BenchError(f"{where}: label: {name!r} names a folder: no slash, no leading dot")
    return Arm(name, value["policy"], read)
