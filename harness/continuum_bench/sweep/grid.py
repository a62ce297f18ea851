"""Reads the grid of a sweep from YAML or ``--set AXIS=A,B``. Every error message names the file and the field."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from continuum_analysis.compare.runs import REPEAT
from continuum_server.policy.registry import PolicyError, split_arm
from continuum_server.server_config import STOCK
from continuum_server.vllm_plugin.versions import PluginError
from continuum_traces.names import near, which
from msgspec import Meta, Struct

from continuum_bench.errors import BenchError
from continuum_bench.experiment_file import find_workload
from continuum_bench.json_files import read_as
from continuum_bench.option_values import read_value
from continuum_bench.options.declare import declared
from continuum_bench.options.policies import checked_options
from continuum_bench.options.run import (
    DEFAULT_POLICIES,
    ArmOptions,
    ArrivalOptions,
    EngineOptions,
    LiveOptions,
    OutputOptions,
    RunOptions,
    TraceOptions,
)
from continuum_bench.yaml_files import yaml_of, yaml_value

ENGINES = ("virtual", "emulated", "cpu", "gpu")
MODEL_ENGINES = ("cpu", "gpu")
"""Engines on which vLLM looks up and loads the model."""
OF_THE_SWEEP = {"traces", "form", *declared(ArmOptions), *declared(OutputOptions)}
"""Run options that are no axis: a grid has other words for them, or the sweep sets them."""
COLUMNS = (
    *("jps", *declared(EngineOptions), *RunOptions.__annotations__),
    *(*declared(TraceOptions), *declared(ArrivalOptions)),
)
"""Run options in the order in which tables show them."""
AXES = {name: declared(RunOptions)[name] for name in dict.fromkeys(COLUMNS) if name not in OF_THE_SWEEP}
"""Run options that a grid may range over."""
ONLY_VIRTUAL = ("pp", "no_prefix_caching", "vllm", "offload", "speculative", "replicas", "router")
"""Axes that only the virtual engine has."""
CASE_WORDS = ("policy", "seed", "seeds", "workload", *AXES)
"""Keys of a grid that a case may have too."""
WORDS = ("name", "engine", "cases", "serve", "repeats", "plot", *CASE_WORDS)


Number = Annotated[int, Meta(ge=0)]


class _Head(Struct):
    """What a grid says beside its axes."""

    name: str | None = None
    engine: str = "virtual"
    cases: Annotated[list[dict[str, Any]], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [{}])
    serve: dict[str, Any] = {}
    repeats: Annotated[int, Meta(ge=1, le=100)] = 1
    plot: dict[str, Any] = {}


class _Seeds(Struct):
    """Which seeds, or how many."""

    seed: Number | list[Number] | None = None
    seeds: Annotated[int, Meta(ge=1)] = 1


class _Arm(Struct, forbid_unknown_fields=True):
    policy: str
    options: dict[str, Any] = {}
    label: str | None = None


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
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    name: str
    engine: str
    """One of ``ENGINES``, or the URL of a running server, up to /v1."""
    points: tuple[Point, ...]
    serve: Mapping[str, Any] = field(default_factory=dict)
    """For engines other than virtual: further options of ``continuum-bench serve``."""
    plot: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the plot (``continuum_analysis.sweep.plots.Plot``)."""
    live: LiveOptions | None = None
    """How a running server is played against; None: as by default."""


def read_grid(path: Path | None, overrides: Sequence[str] = ()) -> Grid:
    """Read a grid from a YAML file and replace axes by ``overrides`` (``AXIS=A,B``).

    Raises:
        BenchError: the grid is invalid; the message names the file and the field.
    """
    if path is None:
        if not overrides:
            raise BenchError("sweep: give a grid: a YAML file, or --set AXIS=A,B")
        return grid_of({}, "--set", Path(), "sweep", overrides)
    with yaml_of(path) as text:
        raw = yaml.safe_load(text)
    if not isinstance(raw, dict):
        raise BenchError(f"{path}: expected a mapping of axes to values")
    return grid_of(raw, str(path), path.parent, path.stem, overrides)


def read_override(text: str) -> tuple[str, Any]:
    """Split ``AXIS=A,B`` into the axis and its value or values."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise BenchError(f"--set {text}: expected AXIS=VALUE or AXIS=A,B")
    parts = [yaml_value(part, f"--set {text}") for part in values.split(",")]
    return name.strip().replace("-", "_"), parts if len(parts) > 1 else parts[0]


def grid_of(raw: Mapping[str, Any], where: str, folder: Path, name: str, overrides: Sequence[str] = ()) -> Grid:
    """Make a grid from a mapping. An axis of ``overrides`` (``AXIS=A,B``) replaces that axis, also in every case.

    Raises:
        BenchError: the grid is invalid; the message names ``where`` and the field.
    """
    given = dict(read_override(text) for text in overrides)
    raw = put_over(raw, given)
    for word in raw:
        if word not in WORDS:
            raise BenchError(f"{where}: {word}: unknown; {near(word, WORDS)}a grid has {', '.join(WORDS)}")
    head = read_as(where, raw, _Head)
    if head.engine not in ENGINES and not is_url(head.engine):
        expected = f"{which(head.engine, ENGINES)}, and the URL of a server, up to /v1"
        raise BenchError(f"{where}: engine: {head.engine!r}; {expected}")
    common = {key: value for key, value in raw.items() if key in CASE_WORDS}
    points: list[Point] = []
    for number, case in enumerate(head.cases):
        at = f"{where}: cases[{number}]" if "cases" in raw else where
        for word in case:
            if word not in CASE_WORDS:
                raise BenchError(f"{at}: {word}: unknown in a case; {which(word, CASE_WORDS)}")
        points += _points(put_over(put_over(common, case), given), at, folder, head.engine)
    for point in points:
        _plays_on(head.engine, point, where)
        _is_drawn(head.plot, point, where)
    if head.engine == "virtual" and head.repeats > 1:
        raise BenchError(f"{where}: repeats: only for servers; in the virtual engine every repeat is equal")
    if head.repeats > 1:
        points = [_repeated(point, number) for number in range(1, head.repeats + 1) for point in points]
    return Grid(head.name or name, head.engine, tuple(points), head.serve, head.plot)


def _is_drawn(plot: Mapping[str, Any], point: Point, where: str) -> None:
    axis = str(plot.get("x", "jps"))
    if isinstance(value := point.axes.get(axis), str):
        raise BenchError(f"{where}: plot: x: {axis} has {value!r}, which is no number; lines cannot run along it")


def is_url(engine: object) -> bool:
    return str(engine).startswith(("http://", "https://"))


def _plays_on(engine: str, point: Point, where: str) -> None:
    """Refuse a point with options that the engine would ignore."""
    stock = [arm for arm in point.arms if arm.policy == STOCK]
    if engine == "virtual" and stock:
        raise BenchError(f"{where}: policy: {STOCK} is for servers; the virtual engine has vllm, which is the same")
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


def _repeated(point: Point, number: int) -> Point:
    """Return the point with its repeat as an axis, so that no two repeats of a cell are played one after the other."""
    return replace(point, axes={**point.axes, REPEAT: number})


def put_over(raw: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace keys of ``raw`` by those of ``given``. ``seed`` and ``seeds`` count as one key."""
    seeds = {"seed", "seeds"}
    replaced = seeds if seeds & set(given) else set()
    return {word: value for word, value in raw.items() if word not in replaced} | dict(given)


def _points(raw: Mapping[str, Any], where: str, folder: Path, engine: str) -> Iterator[Point]:
    arms, seeds = _arms(raw, where), _seeds(raw, where)
    axes: dict[str, list[Any]] = {"workload": _workloads(raw, where, folder)}
    for name in AXES:
        if name in raw:
            at = f"{where}: {name}"
            looked_up = name == "model" and engine in MODEL_ENGINES
            axes[name] = [str(v) if looked_up else read_value(AXES[name], v, at) for v in _listed(raw[name], at)]
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
    at = f"{where}: workload"
    workloads = [find_workload(value, folder, at) for value in _listed(raw.get("workload", "swebench"), at)]
    names = [path.name.split(".")[0] for path in workloads if isinstance(path, Path)]
    if len(set(names)) < len(names):
        raise BenchError(f"{where}: workload: two traces of one name ({', '.join(names)})")
    return workloads


def _seeds(raw: Mapping[str, Any], where: str) -> tuple[int, ...]:
    if "seed" in raw and "seeds" in raw:
        raise BenchError(f"{where}: seeds: give seed (which) or seeds (how many), not both")
    given = read_as(where, {name: raw[name] for name in ("seed", "seeds") if name in raw}, _Seeds)
    return tuple(range(given.seeds) if given.seed is None else _listed(given.seed, f"{where}: seed"))


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
    given = read_as(where, {"policy": value} if isinstance(value, str) else value, _Arm)
    if given.policy == STOCK and given.options:
        raise BenchError(f"{where}: options: policy {STOCK} is vLLM's own scheduler, which has none")
    try:
        options = {} if given.policy == STOCK else checked_options(given.policy, given.options)
    except (PluginError, PolicyError) as error:
        raise BenchError(f"{where}: {error}") from error
    extra = ",".join(f"{key}={option}" for key, option in options.items())
    name = given.label or (f"{given.policy}({extra})" if extra else given.policy)
    if "/" in name or name.startswith("."):
        raise BenchError(f"{where}: label: {name!r} names a folder: no slash, no leading dot")
    return Arm(name, given.policy, options)
