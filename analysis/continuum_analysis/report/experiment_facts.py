"""The facts of an experiment that its manifest and records give: workload, engine, KV pool, distance to the knee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from continuum_traces.records.run_dir import key_of
from continuum_traces.schema import Engine, Hardware, Manifest, Workload

from continuum_analysis.compare.runs import Run
from continuum_analysis.records.demand import demand
from continuum_analysis.report.figure_kit import Groups, shown_runs


def experiment_line(manifests: Sequence[Manifest]) -> str:
    """Return what ran on what, as far as the manifests say: workload, programs and their rate, model, GPU.

    Args:
        manifests: of experiments that are shown together; each value in which they differ is named.
    """
    works = [manifest.workload for manifest in manifests]
    counts = [work.programs for work in works if work.programs is not None]
    number = _each(f"{count:,} program{'s' * (count != 1)}" for count in counts)
    rates = ", ".join(dict.fromkeys(f"{work.jps:g}" for work in works if work.jps is not None))
    pace = f"at {rates}/s" if rates else _each(_pace(work.arrivals) for work in works if work.arrivals)
    gpus = _each(machines(each.hardware, each.engine_options) for each in manifests)
    model = _each(each.hardware.model for each in manifests)
    programs = " ".join(filter(None, (number or "programs", pace))) if number or pace else None
    where = " on ".join(filter(None, (model, gpus))) or None
    return _join([_each(map(_workload, works)) or None, programs, where])


def _pace(arrivals: str) -> str:
    kind, _, number = arrivals.partition(":")
    return f"{number} at a time" if kind == "concurrency" else f"with arrivals {arrivals}"


def _each(texts: Iterable[str | None]) -> str:
    return " or ".join(dict.fromkeys(filter(None, texts)))


def _workload(work: Workload) -> str | None:
    kind = None if work.synthetic is None else "synthetic" if work.synthetic else "recorded"
    notes = _join([kind, f"tool times {work.tool_times}" if work.tool_times else None])
    return f"{work.name} ({notes})" if notes else work.name


def machines(hardware: Hardware, engine: Engine) -> str | None:
    """Return the GPUs, and how they work together; None: they are not known."""
    tensor, stages = hardware.tensor_parallel or 1, hardware.pipeline_parallel or 1
    machine = f"{tensor} x {hardware.gpu}" if hardware.gpu else None
    machine = f"{stages} stages of {machine}" if machine and stages > 1 else machine
    machine = f"the server of {Path(engine.profile).name}" if engine.profile else machine or hardware.endpoint
    replicas = engine.replicas or 1
    router = f" ({engine.router})" if engine.router else ""
    return f"{replicas} replicas{router} of {machine}" if machine and replicas > 1 else machine


def gpu_time(manifest: Manifest) -> str:
    """Return whether GPU time was modelled or measured; records without a manifest do not say."""
    if not manifest.engine:
        return "not known"
    return "modelled" if manifest.modelled else "measured"


def kv_tokens(runs: Sequence[Run]) -> int | None:
    """Return the size of the KV pools of all replicas in tokens; None if the manifest does not give it."""
    manifest = runs[0].manifest
    pool = manifest.hardware.kv_capacity
    return pool.tokens * (manifest.engine_options.replicas or 1) if pool is not None and pool.tokens else None


def _join(parts: Sequence[object]) -> str:
    return ", ".join(str(part) for part in parts if part is not None)


def knee(groups: Groups, capacity: int, policy: str) -> str:
    """Say how much of the pool the live context fills under this policy, and which side of the knee that is."""
    need = demand(shown_runs(groups).get(policy, groups[policy][0]).metrics.facts.machine)
    side = "below the knee, where policies should agree"
    if need.peak_tokens > capacity:
        side = "beyond the knee, where seeds differ widely"
    return f"the live context fills {need.mean_tokens / capacity:.0%} of the KV pool under {policy}, {side}"


def manifest_entries(manifests: Mapping[str, Manifest], experiment: Manifest) -> list[tuple[str, str]]:
    """Return the entries of the experiment's manifest, and those in which the manifests of its runs differ from it,
    after the names of the runs."""
    shown = key_of(experiment, ())
    own = {
        f"runs.{run}.{name}": value
        for run, manifest in manifests.items()
        for name, value in key_of(manifest, ()).items()
        if value != shown.get(name)
    }
    rows = {**shown, **own}.items()
    return [
        (name, _join(value) if isinstance(value, list) else str(value)) for name, value in rows if value not in ([], "")
    ]
