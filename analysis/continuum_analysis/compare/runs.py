"""Runs that are read from their directories, and the checks that runs may be compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from continuum_traces.grouped import grouped
from continuum_traces.json_io import RunDirError, read_json
from continuum_traces.names import which
from continuum_traces.records.run_dir import (
    ENGINE,
    MANIFEST,
    PREVIEW_EVENTS,
    PROGRAMS,
    TURNS,
    difference,
    key_of,
    read_manifest,
    runs_below,
)
from continuum_traces.schema import Manifest

from continuum_analysis.metrics import RunMetrics, analyze_run
from continuum_analysis.records.timeline import AnalysisError

SWEEP = "sweep.json"
PREDICTED = "predicted"
"""The directory in a sweep of servers that holds the same cells in the virtual engine, a sweep too."""
REPEAT = "repeat"
"""The axis of a grid that plays every cell several times."""
BASELINES = ("vllm", "stock")
"""Without ``--baseline``, the baseline is the first of these that ran. Both are vLLM's own scheduler: ``vllm`` in the
virtual engine, ``stock`` on a server."""
OF_THE_RUN = (
    *("schema", "version", "created", "command", "continuum_version", "versions", "modelled", "notes"),
    *("policy", "policy_options", "seed", "engine_options.router"),
)
"""Entries of a manifest in which runs that are compared may differ."""
TIERS = "engine_options.offload"
"""The entry in which a policy and its ``+offload`` arm differ."""


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    manifest: Manifest
    metrics: RunMetrics
    router: str | None = None
    """Set only if the runs of a comparison have different routers."""
    plugin_errors: int = 0
    """Exceptions in the server's policy during the run, in which vLLM scheduled without it: no result of the policy."""
    notes: tuple[str, ...] = ()
    """What the load generator says of the lengths of prompts and answers; shown beside the run's numbers."""

    @property
    def arm(self) -> str:
        """The name of the run's arm: ``continuum``, or ``continuum@affinity`` if the runs have different routers."""
        return self.manifest.policy + (f"@{self.router}" if self.router else "")


def name_variants(runs: Sequence[Run]) -> list[Run]:
    """Set the router of each run if the runs have different routers."""
    routers = [run.manifest.engine_options.router for run in runs]
    if len(set(routers)) < 2:
        return list(runs)
    return [replace(run, router=router) for run, router in zip(runs, routers, strict=True)]


def load_runs(path: Path, alone_s: Mapping[str, float] | None = None) -> list[Run]:
    """Read the complete runs at or below ``path`` (``is_complete``). If there are none, read the records without a
    manifest there: files of the preview, or a server's own records.

    Args:
        alone_s: see ``analyze_run``.

    Raises:
        AnalysisError: there are no runs.
    """
    if not path.exists():
        raise AnalysisError(f"{path}: no such file or directory")
    records = records_at(path)
    described = [folder for folder in records if (folder / MANIFEST).exists()]
    complete = [folder for folder in described if is_complete(folder)]
    bare = [folder for folder in records if folder not in described]
    runs = [read_run_metrics(folder, alone_s) for folder in complete or bare]
    if not runs:
        cut = f"; {len(described)} there were cut short, which `analyze` shows" if described else ""
        raise AnalysisError(f"{path}: no finished run there{cut}")
    return name_variants(runs)


def is_complete(folder: Path) -> bool:
    """Whether a run with a manifest was not cut short.

    A replay ends with engine.json, and a batch of agents has a line in programs.jsonl for each program that ended. What
    a client or a proxy recorded of running agents has no engine, and is complete at any time.
    """
    return any((folder / name).exists() for name in (ENGINE, PROGRAMS)) or not read_manifest(folder).engine


def records_at(path: Path) -> list[Path]:
    """List run directories, complete or not, and other records at or below ``path``; a file is of the preview."""
    if (path / SWEEP).exists():
        with reading_sweep(path):
            return [run for group in read_json(path / SWEEP)["groups"] for run in cells_of(path, group)]
    return runs_below(path) or ([path] if path.is_file() else [])


def cells_of(path: Path, group: Mapping[str, Any]) -> list[Path]:
    """List the directories of a group of sweep.json that have begun. Other names in the file are not opened."""
    begun = {file.parent for file in path.glob(f"*/*/{MANIFEST}")}
    return [folder for cell in group["cells"] if (folder := path / group["folder"] / cell["name"]) in begun]


@contextmanager
def reading_sweep(path: Path) -> Iterator[None]:
    """Convert the errors of a sweep.json with other fields into a ``RunDirError``."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise RunDirError(f"{path / SWEEP}: not a plan of a sweep: {type(error).__name__}: {error}") from error


def read_run_metrics(folder: Path, alone_s: Mapping[str, float] | None = None) -> Run:
    """Read one run, which may be cut short. If its records name no policy, their file's or folder's name stands for it.

    Args:
        alone_s: see ``analyze_run``.
    """
    manifest = read_manifest(folder) if (folder / MANIFEST).exists() else Manifest()
    manifest = replace(manifest, policy=manifest.policy or _name_of(folder))
    facts = read_json(folder / ENGINE) if (folder / ENGINE).is_file() else {}
    notes = tuple(note for note in facts.get("notes") or () if isinstance(note, str))
    errors = int(facts.get("plugin_errors", 0))
    return Run(folder, manifest, analyze_run(folder, alone_s), plugin_errors=errors, notes=notes)


def _name_of(record: Path) -> str:
    """Return ``vllm`` for ``vllm/``, for ``vllm.json`` and for ``vllm/scheduler_timestamps``."""
    path = record.resolve()
    return path.parent.name if path.is_file() and path.stem == PREVIEW_EVENTS else path.stem


def load_all(paths: Sequence[Path]) -> list[Run]:
    """Read the runs of several directories as one experiment with more seeds, policies or loads.

    Raises:
        AnalysisError: a directory contains no run.
    """
    return name_variants([run for path in paths for run in load_runs(path)])


def baseline_of(arms: Mapping[str, Sequence[Run]], asked: str | None = None) -> str:
    """Return the arm with which the others are compared: ``asked``, else vLLM's own scheduler, else the first arm.

    Raises:
        AnalysisError: the baseline ``asked`` has no run.
    """
    wanted = BASELINES if asked is None else (asked,)
    baseline = next((arm for arm, runs in arms.items() if {arm, runs[0].manifest.policy} & set(wanted)), None)
    if baseline is None and asked is not None:
        raise AnalysisError(f"--baseline {asked}: no run of it; {which(asked, arms)}")
    return baseline or next(iter(arms))


def by_load(runs: Sequence[Run]) -> dict[float | None, list[Run]]:
    """Group runs by programs per second, lowest first; None if the manifest does not give it.

    Raises:
        AnalysisError: the runs differ in more than load, policy, router and seed.
    """
    for run in runs:
        _check_same(runs[0], run, "workload.jps")
    loads = grouped((run.manifest.workload.jps, run) for run in runs)
    return dict(sorted(loads.items(), key=lambda item: item[0] or 0.0))


def by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    return grouped((run.arm, run) for run in runs)


def check_comparable(runs: Sequence[Run]) -> None:
    """Check that runs differ only in policy, router and seed, and that no two runs have the same arm and seed.

    Raises:
        AnalysisError: the message names the manifest's field and both directories.
    """
    first = runs[0]
    seen: dict[tuple[str, int], Run] = {}
    options: dict[str, Run] = {}
    for run in runs:
        policy, seed = run.manifest.policy, run.manifest.seed
        twin = seen.setdefault((run.arm, seed), run)
        if twin is not run:
            raise AnalysisError(f"{twin.path} and {run.path} are both policy {run.arm}, seed {seed}; keep them apart")
        other = options.setdefault(policy, run)
        if other.manifest.policy_options != run.manifest.policy_options:
            detail = difference(other.manifest.policy_options, run.manifest.policy_options)
            raise AnalysisError(f"{other.path} and {run.path} cannot be averaged: policy_options.{detail}")
        _check_same(first, run)
    with_tiers = [run for run in runs if run.manifest.engine_options.offload]
    for run in with_tiers:
        _check_same(with_tiers[0], run)


def check_same_workload(first: Run, run: Run) -> None:
    """Check that two runs played the same programs, and that their times are of the same kind of clock.

    Raises:
        AnalysisError: they did not.
    """
    where = f"{first.path} and {run.path} cannot be compared"
    clocks = [each.metrics.facts.clock for each in (first, run)]
    if clocks[0] != clocks[1]:
        raise AnalysisError(
            f"{where}: the times of one are the {clocks[0]}'s, of the other the {clocks[1]}'s; only runs that all have "
            f"their {TURNS} count retries and lateness alike"
        )
    one, other = first.manifest, run.manifest
    if one.workload.sha256 != other.workload.sha256:
        digests = f"sha256 {_brief(one.workload.sha256)} against {_brief(other.workload.sha256)}"
        raise AnalysisError(
            f"{where}: they played different workloads ({digests}); only "
            "runs of the same programs say anything about policies"
        )


def _check_same(first: Run, run: Run, *leave_out: str) -> None:
    """Check that two runs have the same workload and machine; ``leave_out`` names entries that may differ."""
    check_same_workload(first, run)
    where, one, other = f"{first.path} and {run.path} cannot be compared", first.manifest, run.manifest
    may_differ = [*OF_THE_RUN, *leave_out]
    if not (one.engine_options.offload and other.engine_options.offload):  # an arm with tiers, one without
        may_differ.append(TIERS)
    if differs := difference(key_of(one, may_differ), key_of(other, may_differ)):
        folder = Path(os.path.commonpath((first.path, run.path)))
        shown = f"; they are points of one sweep, which `continuum-bench report {folder}` shows"
        raise AnalysisError(f"{where}: {differs}{shown * (folder / SWEEP).exists()}")


def _brief(digest: str | None) -> str:
    return f"{digest:.12}" if digest else "unknown"
