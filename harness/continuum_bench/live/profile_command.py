"""``continuum-bench profile``: write the prefill and decode times of a live server, or modelled times, to a file."""

from __future__ import annotations

import os
from dataclasses import asdict

from continuum_server.step_times.catalog import find_model, kv_capacity, load_step_times
from continuum_server.step_times.profile import (
    DecodeFit,
    DecodePoint,
    PrefillFit,
    PrefillPoint,
    Profile,
    RequestFit,
    make_profile,
    write_profile,
)

from continuum_bench.invocation import utc_now
from continuum_bench.options.serve import ProfileOptions
from continuum_bench.show import print_line, print_notice

DECODE_GRID = [(requests, context) for requests in (1, 4, 16, 64) for context in (512, 4096, 16384)]


def write_profile_file(options: ProfileOptions) -> int:
    """Measure, fit the curves, write the file, and print how well the curves fit."""
    out = options.out
    profile = _from_server(options, options.base_url) if options.base_url else _from_tables(options)
    write_profile(out, profile)
    print_line(_show("prefill seconds of n tokens", profile.prefill))
    if profile.decode is not None:
        print_line(_show("decode step seconds", profile.decode))
    if profile.request is not None:
        print_line(_show("seconds of a request besides its steps", profile.request))
    print_line(f"written to {out}; use it with serve --profile, or swebench/replay --profile")
    return 0


def _from_tables(options: ProfileOptions) -> Profile:
    """Make a profile of the modelled step times."""
    gpu, model, tp = options.gpu, options.model, options.tp
    times = load_step_times(gpu, model, tp, options.step_overhead_ms, band=options.step_times)
    longest = find_model(model).max_context_tokens
    lengths = [1024 * 2**power for power in range(20) if 1024 * 2**power <= longest]
    capacity = kv_capacity(gpu, model, tp)
    return make_profile(
        source=f"{times.provenance.kind} of {times.provenance.gpu} x {tp}: {times.provenance.source}",
        model=times.provenance.model,
        created=utc_now(),
        prefill=[PrefillPoint(n, times.prefill_s(n)) for n in lengths],
        decode=[DecodePoint(b, c, times.step_s((), b, b * c)) for b, c in DECODE_GRID],
        kv_tokens=capacity.tokens,
        block_size=capacity.block_size,
        notes=("modelled, not measured on a server",),
    )


def _from_server(options: ProfileOptions, base_url: str) -> Profile:
    from continuum_bench.live.endpoint import probe_server  # noqa: PLC0415 - aiohttp is needed for servers only
    from continuum_bench.live.profile import measure  # noqa: PLC0415

    api_key = os.environ.get("OPENAI_API_KEY") or None
    endpoint = probe_server(base_url, api_key, options.served_model, options.wait)
    model = options.served_model or endpoint.models[0]
    return measure(endpoint, model, api_key, options.repeats, print_notice, options.longest_prompt)


def _show(title: str, fit: PrefillFit | DecodeFit | RequestFit) -> str:
    *coefficients, (_, worst) = asdict(fit).items()
    terms = ", ".join(f"{name} = {value:.4g}" for name, value in coefficients)
    return f"{title}: {terms}; worst point {worst:.1%} off"
