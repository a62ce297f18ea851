"""``--base-url URL``: plays a workload against a live server, measured from the client's side, and records it."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from continuum_traces.json_io import RunDirError, write_json
from continuum_traces.names import counted
from continuum_traces.playing.conversation import skipped_note
from continuum_traces.records import rows_of
from continuum_traces.records.run_dir import ENGINE, begin, write_manifest
from continuum_traces.schema import Engine, Manifest

from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.errors import BenchError
from continuum_bench.invocation import default_out
from continuum_bench.live.closing_notes import client_side, length_notes, report_generator
from continuum_bench.live.endpoint import Endpoint, plugin_errors, probe_server
from continuum_bench.live.load_settings import LoadCounters, LoadOptions, plays_of
from continuum_bench.live.processes import play
from continuum_bench.live.recording import LiveRecorder, remove_unfinished, take_scheduler_records
from continuum_bench.live.server_metrics import server_metrics
from continuum_bench.lock import locked
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import conclude, print_notice
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
                    print_notice(f"stopped; when there is room again, {_again(run)}")
                    raise
                if counters is None:
                    done = f"{number} of {len(seeds)} runs are complete"
                    print_notice(f"stopped; {done}; {_again(run)}")
                    return INTERRUPTED
                failed += counters.programs_failed + counters.plugin_errors
                display.update(Report(_folder(run, seed).name, state="done"))
        summary = conclude(run.out, options, f", {run.endpoint.base_url}")
        if not options.json_output:
            print_notice(client_side(next(iter(summary.arms.values()))))
    return 1 if failed else 0


def _again(run: _LiveRun) -> str:
    return f"the same command with --out {run.out} plays the others, from their beginning"


def _prepare(name: str, base_url: str, options: RunOptions, live: LiveOptions) -> _LiveRun:
    api_key = os.environ.get(live.api_key_env) or None
    endpoint = probe_server(base_url, api_key, live.served_model, live.wait)
    live.check_records()
    workload = load_workload(name, options, options, endpoint.max_model_len or 131072)
    lanes = workload.lanes
    if lanes is not None and lanes.in_steps and live.processes > 1:
        raise BenchError(f"--processes {live.processes}: one process must play --arrivals {options.arrivals}")
    if options.max_idle_all_s is not None and live.processes > 1:
        limit = f"--max-idle-all-s {options.max_idle_all_s:g}"
        raise BenchError(f"--processes {live.processes}: one process must play with {limit}")
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
        "max_idle_all_s": options.max_idle_all_s,
        "token_times": options.token_times,
        "release": options.tags != "none" and (bool(endpoint.state) or dialect.name == "thunderagent"),
    }
    return LoadOptions(**given)


def _engine_options(load: LoadOptions) -> Engine:
    limits = {name: getattr(load, name) for name in ("program_limit_s", "request_limit_s")}
    given = {name: value for name, value in limits.items() if value not in (None, LiveOptions.request_limit_s)}
    asked = {"model": load.model, "dialect": load.dialect.name, "token_times": load.token_times or None}
    return Engine(more={**asked, "prompts": load.prompts, "retries": load.retries, **given})


def _now() -> datetime:
    return datetime.now(UTC)


def _folder(run: _LiveRun, seed: int) -> Path:
    return run.out / f"{run.label}-seed{seed}"


# ------------------------------------------------------------------------------------------------ a run


def _play_seed(run: _LiveRun, seed: int, display: RunsDisplay) -> LoadCounters | None:
    """Play one seed from its beginning, unless it is complete. None: Ctrl-C stopped the run."""
    folder = _folder(run, seed)
    if (folder / ENGINE).exists():
        print_notice(f"{folder}: complete already")
        return LoadCounters()
    manifest = _begin(run, seed, folder)
    began, plays, counters = datetime.fromisoformat(manifest.created), plays_of(run.workload, seed), LoadCounters()

    def since_s() -> float:
        return (_now() - began).total_seconds()

    def on_progress(so_far: LiveRecorder) -> None:
        ended, in_flight = so_far.programs_ended, so_far.programs_arrived - so_far.programs_ended
        failed = so_far.programs_failed
        display.update(Report(folder.name, ended, len(plays), in_flight=in_flight, programs_failed=failed))

    root, key = run.endpoint.root, run.load.api_key
    errors_before = plugin_errors(root, key)
    with LiveRecorder(folder, on_progress) as recorder, server_metrics(root, folder, since_s):
        whole = play(run.load, (plays, run.workload.lanes), recorder, counters, run.options.processes)
    if run.options.scheduler_records is not None:
        time.sleep(1.0)  # the server writes its record with a delay of up to 0.25 s
        take_scheduler_records(run.options.scheduler_records, folder, began.timestamp())
    if not whole:
        return None
    errors = plugin_errors(root, key)
    counters.plugin_errors = errors - errors_before if errors >= errors_before else errors  # fewer: it was restarted
    counts = {each.name: getattr(counters, each.name) for each in fields(counters)}
    notes = [*length_notes(counters, steered=run.load.prompts == "text"), *skipped_note(counters.skipped_s)]
    write_json(folder / ENGINE, {**counts, "notes": notes, "wall_s": since_s(), **rows_of(folder)})
    report_generator(counters)
    return counters


def _begin(run: _LiveRun, seed: int, folder: Path) -> Manifest:
    """Make the run's directory. A run that was stopped is removed from it."""
    manifest = run.manifest(seed)
    begin(folder, manifest)
    if remove_unfinished(folder):
        print_notice(f"{folder}: was stopped before its end; it is played from its beginning")
    write_manifest(folder, manifest)
    return manifest
