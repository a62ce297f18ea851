"""``--base-url URL``: plays a workload against a live server, measured from the client's side, and records it."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from continuum_analysis.compare.summary import RESUMED
from continuum_traces.names import counted
from continuum_traces.run_dir import ENGINE, MANIFEST, RunDirError, begin, rows_of, write_json, write_manifest
from continuum_traces.schema import Engine, Manifest

from continuum_bench.errors import BenchError
from continuum_bench.invocation import default_out
from continuum_bench.live.endpoint import Endpoint, plugin_errors, probe_server
from continuum_bench.live.load import LivePlay, LoadCounters, LoadOptions, plays_of
from continuum_bench.live.processes import play
from continuum_bench.live.recording import (
    LiveRecorder,
    finished_programs,
    keep_finished,
    take_scheduler_records,
)
from continuum_bench.live.results import client_side, report_generator
from continuum_bench.live.server_metrics import server_metrics
from continuum_bench.lock import locked
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import conclude, goes_on, print_notice
from continuum_bench.virtual.pool import Report
from continuum_bench.workload.arrivals import pace
from continuum_bench.workload.workload import JobSource, load_workload


@dataclass(frozen=True, slots=True)
class _LiveRun:
    """The settings of a run, complete before the load starts."""

    endpoint: Endpoint
    load: LoadOptions
    workload: JobSource
    label: str
    out: Path
    options: LiveOptions

    def manifest(self, seed: int) -> Manifest:
        endpoint, processes = self.endpoint, self.options.processes
        generator = (f"generator: {processes} processes",) if processes > 1 else ()
        guards = (f"guards: {endpoint.state['guards']}",) if "guards" in endpoint.state else ()
        return endpoint.manifest(
            self.load.model,
            (endpoint.describe(self.load.model), *generator, *guards),
            created=_now().isoformat(timespec="milliseconds"),
            policy=self.label,
            seed=seed,
            workload=self.workload.facts,
            engine_options=_engine_options(self.load),
        )


def run_live(name: str, base_url: str, options: RunOptions, live: LiveOptions) -> int:
    """Play the workload once per seed. Returns 0; 1 if programs or the policy failed; or 130 after Ctrl-C."""
    run = _prepare(name, base_url, options, live)
    with locked(run.out):
        begin(run.out, run.manifest(options.seed))
        where = f"against {run.endpoint.base_url}, into {run.out}"
        if not options.quiet:
            print_notice(run.endpoint.describe(run.load.model))
            programs = counted(run.workload.trace.number, "program")
            print_notice(f"{programs} {pace(options.arrivals, options.jps)} {where}")
        failed = 0
        seeds, quiet = range(options.seed, options.seed + options.seeds), options.json_output or options.quiet
        with RunsDisplay({_folder(run, seed).name: 1.0 for seed in seeds}, 0, quiet) as display:
            for number, seed in enumerate(seeds):
                try:
                    counters = _play_seed(run, seed, display)
                except RunDirError:
                    print_notice(f"stopped; when there is room again, {goes_on(run.out)}")
                    raise
                if counters is None:
                    done = f"{number} of {len(seeds)} runs are complete"
                    print_notice(f"stopped; {done}; {goes_on(run.out)}")
                    return 130
                failed += counters.programs_failed + counters.plugin_errors
                display.update(Report(_folder(run, seed).name, state="done"))
        summary = conclude(run.out, options, f", {run.endpoint.base_url}")
        if not options.json_output:
            print_notice(client_side(next(iter(summary.arms.values()))))
    return 1 if failed else 0


def _prepare(name: str, base_url: str, options: RunOptions, live: LiveOptions) -> _LiveRun:
    api_key = os.environ.get(live.api_key_env) or None
    endpoint = probe_server(base_url, api_key)
    workload = load_workload(name, options, options, endpoint.max_model_len or 131072)
    lanes = workload.lanes
    if lanes is not None and lanes.in_steps and live.processes > 1:
        raise BenchError(f"--processes {live.processes}: one process must play --arrivals {options.arrivals}")
    if lanes is not None and lanes.number < live.processes:
        raise BenchError(f"--processes {live.processes}: more than the {lanes.number} programs at a time")
    load = _load_options(endpoint, options, live, api_key)
    return _LiveRun(endpoint, load, workload, live.label or endpoint.policy, options.out or default_out(name), live)


def _load_options(endpoint: Endpoint, options: RunOptions, live: LiveOptions, api_key: str | None) -> LoadOptions:
    dialect = endpoint.dialect_of(live.dialect)
    prompts = live.prompts or ("tokens" if endpoint.vllm_version is not None else "text")
    model = live.served_model or endpoint.models[0]
    if model not in endpoint.models:
        raise BenchError(f"--served-model {model}: the server has {', '.join(endpoint.models)}")
    given = {
        **live.shared_with(LoadOptions),
        "base_url": endpoint.base_url,
        "model": model,
        "dialect": dialect,
        "prompts": prompts,
        "api_key": api_key,
        "salt": uuid.uuid4().hex,
        "time_limit_s": options.time_limit_s,
        "token_times": options.token_times,
        "release": options.tags != "none" and (bool(endpoint.state) or dialect.name == "thunderagent"),
    }
    return LoadOptions(**given)


def _engine_options(load: LoadOptions) -> Engine:
    limits = {name: getattr(load, name) for name in ("program_limit_s", "request_limit_s")}
    given = {name: value for name, value in limits.items() if value not in (None, LiveOptions.request_limit_s)}
    return Engine(
        model=load.model,
        dialect=load.dialect.name,
        token_times=load.token_times or None,
        more={"prompts": load.prompts, "retries": load.retries, **given},
    )


def _now() -> datetime:
    return datetime.now(UTC)


def _folder(run: _LiveRun, seed: int) -> Path:
    return run.out / f"{run.label}-seed{seed}"


# ------------------------------------------------------------------------------------------------ a run


def _play_seed(run: _LiveRun, seed: int, display: RunsDisplay) -> LoadCounters | None:
    """Play one seed, or those of its programs that did not finish before. None: Ctrl-C stopped the run."""
    folder = _folder(run, seed)
    if (folder / ENGINE).exists():
        print_notice(f"{folder}: complete already")
        return LoadCounters()
    done = finished_programs(folder) if (folder / MANIFEST).exists() else frozenset()
    manifest, plays, elapsed_s, now = _begin(run, seed, folder, done)
    counters, lanes = LoadCounters(), run.workload.lanes
    lanes = lanes and replace(lanes, start_s=elapsed_s)

    def since_s() -> float:
        return (_now() - now).total_seconds()

    def on_progress(ended: int) -> None:
        display.update(Report(folder.name, ended, len(plays)))

    root, key = run.endpoint.root, run.load.api_key
    errors_before = plugin_errors(root, key)
    with LiveRecorder(folder, on_progress) as recorder, server_metrics(root, folder, lambda: elapsed_s + since_s()):
        whole = play(run.load, (plays, lanes), recorder, counters, run.options.processes, elapsed_s)
    if run.options.scheduler_records is not None:
        time.sleep(1.0)  # the server writes its record with a delay of up to 0.25 s
        began_s = datetime.fromisoformat(manifest.created).timestamp()
        take_scheduler_records(run.options.scheduler_records, folder, began_s, now.timestamp(), done)
    if not whole:
        return None
    errors = plugin_errors(root, key)
    counters.plugin_errors = errors - errors_before if errors >= errors_before else errors  # fewer: it was restarted
    counts = {each.name: getattr(counters, each.name) for each in fields(counters)}
    before = {"programs_finished_before": len(done), "wall_s": elapsed_s + since_s()}
    write_json(folder / ENGINE, {**counts, **before, **rows_of(folder)})
    report_generator(counters)
    return counters


def _begin(
    run: _LiveRun, seed: int, folder: Path, done: frozenset[str]
) -> tuple[Manifest, list[LivePlay], float, datetime]:
    """Return the run's manifest, the programs that are left, the second on its clock at which it begins, and now."""
    plays, now, new = plays_of(run.workload, seed), _now(), not (folder / MANIFEST).exists()
    before = begin(folder, run.manifest(seed))
    if new:
        return before, plays, 0.0, now
    elapsed_s = keep_finished(folder, done)
    left = [play for play in plays if play.job.program_id not in done]
    shift_s = elapsed_s - min((play.job.arrival_s for play in left), default=0.0)
    again = [replace(p, job=replace(p.job, arrival_s=p.job.arrival_s + shift_s), again=True) for p in left]
    note = (
        f"{RESUMED}{now.isoformat(timespec='seconds')}: {len(done)} of {len(plays)} programs had finished and are "
        f"kept; the others arrived anew from {elapsed_s:.1f} s on, spaced as before"
    )
    manifest = replace(before, notes=(*before.notes, note))
    write_manifest(folder, manifest)
    print_notice(f"{folder}: {len(done)} of {len(plays)} programs had finished; {len(left)} are left")
    return manifest, again, elapsed_s, now
