"""Prints what fair sharing between API keys costs and gains when all keys are honest: agents in virtual time.

    python benchmarks/fairness_price.py [--rates 0.1+0.1,0.18+0.018] [--policies working-set] [--lags none,1]

Each key has programs of its own, which arrive at random at the given rate per second. ``none``: no fair sharing.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
from commands import show, tabular
from continuum_server.policy.program_table import Guards
from continuum_server.routers import ROUTERS
from continuum_server.virtual import loop
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, NAMESPACE_KEY
from continuum_traces.playing.conversation import Job
from continuum_traces.programs.synth import load_profile, synthesize
from continuum_traces.schema import SchedulerEvent, Tags
from continuum_traces.wire import tags_to_xargs


def _keyed(tags: Tags) -> dict[str, Any]:
    """Return xargs with the digest of the key that the program's name begins with, as the HTTP side sends it."""
    key = f"{int(str(tags.program_id).split('~')[0]):016x}"
    return {**tags_to_xargs(tags), CLIENT_KEY: key, NAMESPACE_KEY: key}


def jobs_of(rates: list[float], seed: int, profile: str, number: int) -> list[Job]:
    jobs = []
    for key, rate in enumerate(rates):
        programs = synthesize(
            load_profile(profile), max(3, round(number * rate / sum(rates))), 1000 * seed + key, "context"
        )
        arrivals = np.cumsum(np.random.default_rng([seed, key]).exponential(1 / rate, len(programs)))
        names = (replace(program, program_id=f"{key}~{index}") for index, program in enumerate(programs))
        jobs += [Job(program, float(arrival_s)) for program, arrival_s in zip(names, arrivals, strict=True)]
    return sorted(jobs, key=lambda job: job.arrival_s)


class Times:
    """When each program got its first token's place in the batch, and when it ended."""

    def __init__(self) -> None:
        self.first_s: dict[str, float] = {}
        self.last_s: dict[str, float] = {}
        self.hit_tokens = self.prompt_tokens = 0
        self.events: list[str] = []

    def write(self, event: SchedulerEvent) -> None:
        name = event.program_id.split(":")[-1]
        self.events.append(repr(event))
        if event.event == "finish":
            self.last_s[name] = event.t
        if event.event == "start":
            self.first_s.setdefault(name, event.t)
            self.hit_tokens += event.hit_tokens or 0
            self.prompt_tokens += event.prompt_tokens or 0


def play(policy: str, guards: Guards, jobs: list[Job]) -> Times:
    config, times = EngineConfig(gpu="h100-sxm", guards=guards), Times()
    engine = build_engine(shape_of(config), times_of(config), settings_of(config, policy, {}), sink=times)
    ReplicaLoops([engine.loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0).run()
    engine.close()
    return times


@tabular("policy", "rates", "lag", "mean JCT, s", "JCT by key, s", "wait of first turns by key, s", "hits")
def lines(options: argparse.Namespace) -> Iterator[Any]:
    for rates in options.rates:
        for policy in options.policies:
            for lag in options.lags:
                guards = Guards(fair="none") if lag == "none" else Guards(key_lag=float(lag))
                jct, waits = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
                hit = prompt = 0
                for seed in map(int, options.seeds):
                    jobs = jobs_of([float(rate) for rate in rates.split("+")], seed, options.profile, options.programs)
                    times = play(policy, guards, jobs)
                    hit, prompt = hit + times.hit_tokens, prompt + times.prompt_tokens
                    for job in jobs:
                        key = job.program_id.split("~")[0]
                        jct[key].append(times.last_s[job.program_id] - job.arrival_s)
                        waits[key].append(times.first_s[job.program_id] - job.arrival_s)
                of_keys = [", ".join(f"{mean(each[key]):.0f}" for key in sorted(each)) for each in (jct, waits)]
                mean_s = mean(value for values in jct.values() for value in values)
                yield f"`{policy}`", rates, lag, f"{mean_s:.1f}", *of_keys, f"{hit / prompt:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--rates", type=names, default="0.1+0.1,0.18+0.018", help="programs/s of each key")
    parser.add_argument("--policies", type=names, default="continuum,working-set")
    parser.add_argument("--lags", type=names, default="none,1")
    parser.add_argument("--seeds", type=names, default="0")
    parser.add_argument("--profile", default="swebench")
    parser.add_argument("--programs", type=int, default=100)
    options = parser.parse_args()
    loop.tags_to_xargs = _keyed
    show(lines(options))


if __name__ == "__main__":
    main()
