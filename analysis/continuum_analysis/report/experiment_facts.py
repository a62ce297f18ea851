"""The facts of an experiment that its manifest and records give: workload, engine, KV pool, distance to the knee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.schema import Engine, Hardware, Manifest, StepTimesSource, Workload

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.records.demand import demand
from continuum_analysis.report.figure_kit import Groups, shown_run

KEPT_UP, WAITED = 0.75, 0.2
"""An arm is overloaded if the middle half of its programs arrived in less than ``KEPT_UP`` of the time in which the
middle half finished, and programs spent more than ``WAITED`` of their time in the queue."""


def experiment_line(manifests: Sequence[Manifest]) -> str:
    """Return what ran on what, as far as the manifests say: workload, programs and their rate, model, GPU.

    Args:
        manifests: of experiments that are shown together; each value in which they differ is named.
    """
    works = [manifest.workload for manifest in manifests]
    counts = [work.programs for work in works if work.programs is not None]
    number = _each(f"{count:,} program{'s' * (count != 1)}" for count in counts)
    rates = ", ".join(dict.fromkeys(f"{work.jps:g}" for work in works if work.jps is not None))
    pace = f"at {rates}/s" if rates else _each(f"with arrivals {work.arrivals}" for work in works if work.arrivals)
    machines = _each(filter(None, (_machines(each.hardware, each.engine_options) for each in manifests)))
    model = _each(each.hardware.model for each in manifests if each.hardware.model)
    programs = " ".join(filter(None, (number or "programs", pace))) if number or pace else None
    where = " on ".join(filter(None, (model, machines))) or None
    return _join([_each(filter(None, map(_workload, works))) or None, programs, where])


def _each(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


def _workload(work: Workload) -> str | None:
    notes = _join([_kind(work), f"tool times {work.tool_times}" if work.tool_times else None])
    return f"{work.name} ({notes})" if notes else work.name


def _kind(work: Workload) -> str | None:
    return None if work.synthetic is None else "synthetic" if work.synthetic else "recorded"


def _machines(hardware: Hardware, engine: Engine) -> str | None:
    tensor, stages = hardware.tensor_parallel or 1, hardware.pipeline_parallel or 1
    said = f"{tensor} x {hardware.gpu}" if hardware.gpu else None
    said = f"{stages} stages of {said}" if said and stages > 1 else said
    said = f"the server of {Path(engine.profile).name}" if engine.profile else said
    replicas = engine.replicas or 1
    router = f" ({engine.router})" if engine.router else ""
    return f"{replicas} replicas{router} of {said}" if said and replicas > 1 else said


def gpu_time(manifest: Manifest) -> str:
    """Return whether GPU time was modelled or measured; records without a manifest do not say."""
    if not manifest.engine:
        return "not known"
    return "modelled" if manifest.modelled else "measured"


def overload(groups: Groups, summary: Summary) -> str:
    """Say that programs arrived faster than they were served, if so, with both rates; else return an empty text."""
    offered = summary.manifest.workload.jps
    behind = [arm for arm, runs in groups.items() if _waits(summary.arms[arm]) and all(map(_falls_behind, runs))]
    rates = sorted(v for arm in summary.arms.values() if (v := arm.mean("throughput_jobs_per_s")) is not None)
    if offered is None or not behind:
        return ""
    served = "-".join(dict.fromkeys(f"{rate:.2g}" for rate in (rates[0], rates[-1])))
    under = "" if len(behind) == len(groups) else f" under {', '.join(behind)}"
    return f"offered {offered:g}/s, served {served}/s: overloaded{under}"


def _waits(arm: ArmSummary) -> bool:
    return (arm.mean("bubble_mean_s") or 0.0) > WAITED * (arm.mean("jct_mean_s") or 0.0)


def _falls_behind(run: Run) -> bool:
    programs = run.metrics.facts.programs
    if not programs:
        return True
    arrived_s, finished_s = [p.arrive_s for p in programs], [p.finish_s for p in programs]
    arriving_s, finishing_s = (float(np.subtract(*np.percentile(each, (75, 25)))) for each in (arrived_s, finished_s))
    return arriving_s < KEPT_UP * finishing_s


def kv_tokens(runs: Sequence[Run]) -> int | None:
    """Return the size of the KV pools of all replicas in tokens; None if the manifest does not give it."""
    manifest = runs[0].manifest
    pool = manifest.hardware.kv_capacity
    return pool.tokens * (manifest.engine_options.replicas or 1) if pool is not None and pool.tokens else None


def _replicas(runs: Sequence[Run]) -> str:
    """Return the number of replicas and their routers; an empty text with one replica."""
    number = runs[0].manifest.engine_options.replicas or 1
    routers = dict.fromkeys(str(run.manifest.engine_options.router) for run in runs)
    return f"{number}, router {' or '.join(routers)}" if number > 1 else ""


def _band(steps: StepTimesSource, summary: Summary) -> str | None:
    """Return the bands of the step times; None unless low, mid and high differ."""
    if summary.ends:
        return f"figures: {summary.band}; also played: {' and '.join(summary.ends)}"
    return f"band: {steps.band}" if "low and high differ" in (steps.attention or "") else None


def experiment_facts(
    runs: Sequence[Run], summary: Summary, groups: Groups, capacity: int | None
) -> list[tuple[str, str]]:
    """Return the facts of the experiment that the manifest gives: workload, seeds, engine, model, GPU, KV pool ..."""
    manifest = runs[0].manifest
    work, hardware = manifest.workload, manifest.hardware
    steps = hardware.step_times or StepTimesSource()
    seeds = ", ".join(map(str, summary.seeds))
    facts = [
        ("Workload", _join([work.name, _kind(work)])),
        ("Programs", _join([work.programs])),
        ("Turns", _join([work.turns])),
        ("Tokens reading", _join([work.tokens_reading])),
        ("Arrivals", _join([work.arrivals, f"{work.jps} programs/s" if work.jps is not None else None])),
        ("Tool times", _join([work.tool_times])),
        ("Seeds", seeds),
        ("Engine", manifest.engine),
        ("Model", _join([hardware.model])),
        ("GPU", _join([hardware.gpu, _parallel(hardware)])),
        ("Replicas", _replicas(runs)),
        ("Step times", _join([steps.kind, steps.source, _band(steps, summary)])),
        ("Attention", _join([steps.attention])),
    ]
    if capacity:
        facts += [
            ("KV pool", f"{capacity:,} tokens"),
            ("Distance to the knee", _knee_words(groups, capacity, summary.baseline)),
        ]
    return [(name, value) for name, value in facts if value]


def _join(parts: Sequence[object]) -> str:
    return ", ".join(str(part) for part in parts if part is not None)


def _parallel(hardware: Hardware) -> str | None:
    degrees = {"tensor parallel over": hardware.tensor_parallel, "pipeline stages:": hardware.pipeline_parallel}
    said = [f"{words} {degree}" for words, degree in degrees.items() if degree not in (None, 1)]
    return ", ".join(said) or None


def knee(groups: Groups, capacity: int, policy: str) -> tuple[float, float, str]:
    """Return the mean and peak of the live context as shares of the pool under this policy, and the side of the knee on
    which they are."""
    need = demand((shown_run(groups, policy) or groups[policy][0]).metrics.facts.machine)
    mean, peak = need.mean_tokens / capacity, need.peak_tokens / capacity
    if peak <= 1.0:
        return mean, peak, "below the knee, where policies should agree"
    return mean, peak, "beyond the knee, where seeds differ widely"


def _knee_words(groups: Groups, capacity: int, policy: str) -> str:
    mean, peak, side = knee(groups, capacity, policy)
    seed = (shown_run(groups, policy) or groups[policy][0]).manifest.seed
    return (
        f"live context fills {mean:.0%} of the pool on average and {peak:.0%} at its peak under {policy}, seed "
        f"{seed}: {side}"
    )


def flat(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Return nested entries of a manifest under dotted names."""
    if isinstance(data, Mapping):
        return [row for key, value in data.items() for row in flat(value, f"{name}.{key}" if name else str(key))]
    if isinstance(data, list | tuple):
        return [(name, ", ".join(map(str, data)))] if data else []
    return [(name, str(data))]
