"""``continuum-bench replay TRACE --base-url URL``: a workload against a live server, into a run directory."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from continuum_analysis.compare import write_summary
from continuum_traces.run_dir import ENGINE, EVENTS, TURNS, JsonLines, RunDirError, create, read_events, write_json
from continuum_traces.run_dir import write_manifest as write_run_manifest
from continuum_traces.schema import Manifest, TurnRecord

from continuum_bench.live.driver import LivePlay, LoadCounters, LoadDriver, LoadOptions, Prompts
from continuum_bench.live.endpoint import Endpoint, look_at
from continuum_bench.options import RunOptions
from continuum_bench.show import print_notice, print_summary
from continuum_bench.workload import BenchError, Workload, arrivals
from continuum_bench.workload_options import workload_of
from continuum_client.dialects import DIALECTS

LATE_S = 0.010
"""A generator later than this at its 99th percentile is named in the manifest's notes."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What only a run against a server needs."""

    base_url: str
    served_model: str | None = None
    label: str | None = None
    dialect: str | None = None
    prompts: str | None = None
    retries: int = 3
    program_limit_s: float | None = None
    scheduler_records: Path | None = None


def run_live(name: str, options: RunOptions, live: LiveOptions) -> int:
    """Play the workload once per seed, record, summarise. 0; 1 where programs failed; 130 for Ctrl-C."""
    api_key = os.environ.get("OPENAI_API_KEY") or None
    endpoint = look_at(live.base_url, api_key)
    workload = workload_of(name, options, endpoint.max_model_len or 131072)
    load = _load_options(endpoint, live, api_key)
    label = live.label or endpoint.state.get("policy") or ("vllm" if endpoint.vllm_version else "server")
    out = create(options.out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    seeds = list(range(options.seed, options.seed + options.seeds))
    manifests = [_manifest(endpoint, load, workload, options.jps, label, seed) for seed in seeds]
    write_run_manifest(out, manifests[0])
    print_notice(f"{workload.facts['programs']} programs at {options.jps:g}/s against {endpoint.base_url}, into {out}")
    failed, done = 0, 0
    for seed, manifest in zip(seeds, manifests, strict=True):
        folder = create(out / f"{label}-seed{seed}")
        write_run_manifest(folder, manifest)
        plays = [
            LivePlay(play.program, _program_id(play.program.program_id, play.salt), play.arrival_s, number)
            for number, play in enumerate(arrivals(workload, options.jps, seed))
        ]
        started_s = time.time()  # noqa: TID251 - the server's records carry its wall clock
        counters = _play(load, plays, folder, quiet=options.json_output)
        if live.scheduler_records is not None:
            _take_scheduler_records(live.scheduler_records, folder, started_s)
        if counters is None:
            print_notice(f"stopped; {done} of {len(seeds)} runs are complete in {out}")
            return 130
        _report_generator(counters)
        done, failed = done + 1, failed + counters.programs_failed
    summary = write_summary(out)
    if not options.no_report:
        from continuum_analysis.report import write_report  # noqa: PLC0415 - plotly is slow to import

        write_report(out)
    if options.json_output:
        sys.stdout.write(json.dumps({**summary, "out": str(out)}, indent=2) + "\n")
    else:
        print_summary(summary, f"{workload.facts['name']}, {workload.facts['programs']} programs, {endpoint.base_url}")
    return 1 if failed else 0


def _load_options(endpoint: Endpoint, live: LiveOptions, api_key: str | None) -> LoadOptions:
    is_vllm = endpoint.vllm_version is not None
    dialect = live.dialect or ("vllm" if is_vllm else "headers")
    if dialect not in DIALECTS:
        raise BenchError(f"--dialect {dialect}: there are {', '.join(DIALECTS)}")
    prompts = live.prompts or ("tokens" if is_vllm else "text")
    if prompts not in ("tokens", "text"):
        raise BenchError(f"--prompts {prompts}: there are tokens and text")
    model = live.served_model or endpoint.models[0]
    if model not in endpoint.models:
        raise BenchError(f"--served-model {model}: the server has {', '.join(endpoint.models)}")
    return LoadOptions(
        base_url=endpoint.base_url,
        model=model,
        dialect=DIALECTS[dialect],
        prompts=cast(Prompts, prompts),
        api_key=api_key,
        salt=uuid.uuid4().hex,
        retries=live.retries,
        program_limit_s=live.program_limit_s,
    )


def _manifest(endpoint: Endpoint, load: LoadOptions, workload: Workload, jps: float, label: str, seed: int) -> Manifest:
    server = {name: endpoint.state[name] for name in ("policy", "policy_options", "guards") if name in endpoint.state}
    options = {"model": load.model, "dialect": load.dialect.name, "prompts": load.prompts, "retries": load.retries}
    versions = {"vllm": endpoint.vllm_version or "not said", "python": platform.python_version()}
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(["continuum-bench", *sys.argv[1:]]),
        continuum_version=version("continuum-ttl"),
        versions=versions,
        engine="endpoint",
        policy=label,
        policy_options=dict(server.get("policy_options", {})),
        seed=seed,
        workload=workload.facts,
        hardware={**_hardware(endpoint), "model": load.model},
        engine_options=options,
        modelled=() if endpoint.emulated is None else MODELLED,
        notes=(f"server: {endpoint.base_url}", *((f"guards: {server['guards']}",) if "guards" in server else ())),
    )


MODELLED = ("GPU step times (the server's GPU is emulated)", "the model's answers (scripted or filler)")


def _hardware(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.emulated is None:
        return {"endpoint": "a server; its hardware is not known to the client"}
    return {"endpoint": "a server with an emulated GPU", "emulated": endpoint.emulated}


def _program_id(program_id: str, salt: int) -> str:
    return program_id if salt == 0 else f"{program_id}#{salt}"


def _play(load: LoadOptions, plays: Sequence[LivePlay], folder: Path, quiet: bool) -> LoadCounters | None:
    """Drive one run; None where Ctrl-C cut it short."""
    total, finished = len(plays), 0
    with JsonLines(folder / TURNS, flush_every=1) as turns:
        driver: LoadDriver

        def on_turn(record: TurnRecord) -> None:
            nonlocal finished
            turns.write(record)
            if record.is_last or record.error is not None:
                finished += 1
                if not quiet and sys.stderr.isatty():
                    sys.stderr.write(f"\r{finished}/{total} programs, {driver.now_s():.0f} s ")

        driver = LoadDriver(load, on_turn)
        try:
            asyncio.run(driver.run(plays))
        except KeyboardInterrupt:
            return None
        seconds = driver.now_s()
    if not quiet and sys.stderr.isatty():
        sys.stderr.write("\n")
    write_json(folder / ENGINE, {**_generator_facts(driver.counters), "wall_s": seconds})
    return driver.counters


def _generator_facts(counters: LoadCounters) -> dict[str, Any]:
    lateness = counters.lateness_s or [0.0]
    return {
        "requests": counters.requests,
        "retries": counters.retries,
        "errors": dict(counters.errors),
        "programs_done": counters.programs_done,
        "programs_failed": counters.programs_failed,
        "send_lateness_p50_s": float(np.percentile(lateness, 50)),
        "send_lateness_p99_s": float(np.percentile(lateness, 99)),
        "send_lateness_max_s": float(max(lateness)),
    }


def _report_generator(counters: LoadCounters) -> None:
    facts = _generator_facts(counters)
    if facts["send_lateness_p99_s"] > LATE_S:
        print_notice(
            f"warning: the generator itself was late by {facts['send_lateness_p99_s'] * 1e3:.0f} ms at the 99th "
            "percentile; latencies count from the intended instant and include it"
        )
    if counters.errors:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in counters.errors.items())
        print_notice(f"errors: {kinds}; {counters.retries} tries again, {counters.programs_failed} programs failed")


def _take_scheduler_records(source: Path, folder: Path, started_s: float) -> None:
    """The server's own record of this run's programs, beside the client's; it is a quarter of a second behind."""
    time.sleep(1.0)
    try:
        with JsonLines(folder / EVENTS, flush_every=512) as events:
            for event in read_events(source):
                if event.t >= started_s:
                    events.write(event)
    except RunDirError as error:
        raise BenchError(f"--scheduler-records: {error}") from error
