"""Compares step times with measurements. docs/results/trust.md has the numbers that this prints.

    python benchmarks/step_times_check.py [interpolation|roofline|silicon ...] [--fit]

``interpolation`` and ``silicon`` need ``aiconfigurator-core`` (``step_times_build.py``).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from importlib.resources import files
from itertools import chain
from typing import Any

import numpy as np
from commands import show, tabular
from continuum_server.step_times.catalog import (
    TENSOR_PARALLEL,
    find_gpu,
    find_model,
    load_step_times,
    table_name,
)
from continuum_server.step_times.model import StepTimes, StepTimesError
from continuum_server.step_times.roofline import RooflineStepTimes, Shares
from continuum_server.step_times.table import TableStepTimes, table_from_json
from numpy.typing import NDArray
from scipy.optimize import least_squares
from step_times_build import open_pair, pairs
from step_times_silicon import GROUPS, group_errors

Errors = list[float]
Floats = NDArray[np.float64]
FITTED = ("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
FITTED_MODELS = ("llama-3.1-8b", "llama-3.1-70b")
HELD_OUT = "l40s"
PROMPTS = (128, 512, 2048, 8192, 32768)
BATCHES = (1, 8, 32, 64)
DECODE_CONTEXTS = (1024, 8192)
OVERHEADS_MS = (0.0, 1.0, 2.0, 3.0)


def interpolation_errors(model: str, gpu: str, tensor_parallel: int, points: int, seed: int) -> dict[str, Errors]:
    """Return relative errors against the package at random batches between grid points, without the step overhead.

    Chunks have at least 128 tokens. Shorter chunks behind a long prefix take less than reading the prefix's KV by the
    package's times, but not by ours.
    """
    rng = np.random.default_rng(seed)
    source = open_pair(find_model(model), find_gpu(gpu).name, tensor_parallel)
    times = sums_of_table(gpu, model, tensor_parallel)
    out: dict[str, Errors] = {"prompt": [], "chunk": [], "decode": []}
    for _ in range(points):
        prompt = _log_uniform(rng, 1, 8192)
        out["prompt"].append(times.prefill_s(prompt) * 1e3 / source.predict_prefill_latency(1, prompt, 0) - 1)
        chunk, prefix = _log_uniform(rng, 128, 8192), _log_uniform(rng, 1, 120_000)
        truth = source.predict_prefill_latency(1, prefix + chunk, prefix)
        out["chunk"].append(times.prefill_s(chunk, prefix) * 1e3 / truth - 1)
        batch, context = int(rng.integers(1, 513)), _log_uniform(rng, 1, 131_000)
        truth = source.predict_decode_latency(batch, context, 2)
        out["decode"].append(times.step_s((), batch, batch * context) * 1e3 / truth - 1)
    return out


def sums_of_table(gpu: str, model: str, tensor_parallel: int) -> TableStepTimes:
    """Return the step times of the committed table alone: without overhead, and with mixed steps as sums."""
    provenance = load_step_times(gpu, model, tensor_parallel, 0.0).provenance
    table = files("continuum_server.step_times") / "tables" / table_name(gpu, find_model(model), tensor_parallel)
    return TableStepTimes(table_from_json(json.loads(table.read_text(encoding="utf-8"))), provenance)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


@tabular("table", "prompt mean", "max", "chunk on a prefix mean", "max", "decode mean", "max")
def interpolation_lines() -> Iterator[list[str]]:
    every: dict[str, Errors] = {"prompt": [], "chunk": [], "decode": []}
    for model, gpu, tensor_parallel in pairs():
        errors = interpolation_errors(model, gpu, tensor_parallel, points=300, seed=1)
        for kind, of_kind in errors.items():
            every[kind] += of_kind
        yield _error_cells(f"{gpu} {model} tp{tensor_parallel}", errors)
    yield _error_cells("all", every)


def _error_cells(name: str, errors: dict[str, Errors]) -> list[str]:
    cells = [name]
    for found in errors.values():
        absolute = np.abs(found)
        cells += [f"{absolute.mean():.2%}", f"{absolute.max():.1%}"]
    return cells


def roofline_errors(gpu: str, model: str, tensor_parallel: int, shares: Shares | None) -> dict[str, Errors]:
    """Return the roofline's relative errors against the table for ``PROMPTS`` and ``BATCHES`` x ``DECODE_CONTEXTS``."""
    measured = load_step_times(gpu, model, tensor_parallel, 0.0)
    modelled = RooflineStepTimes(find_gpu(gpu), find_model(model), tensor_parallel, 0.0, shares)

    def errors(ask: Callable[[StepTimes], list[float]]) -> Errors:
        return [a / b - 1 for a, b in zip(ask(modelled), ask(measured), strict=True)]

    return {
        "prompt": errors(lambda times: [times.prefill_s(n) for n in PROMPTS]),
        "decode": errors(lambda times: [times.step_s((), b, b * n) for b in BATCHES for n in DECODE_CONTEXTS]),
    }


def fit_shares() -> Shares:
    """Fit the constants to the fitted GPUs' tables: least squared logarithms of errors, with equal weights."""
    cases = [(gpu, model, degree) for gpu in FITTED for model in FITTED_MODELS for degree in TENSOR_PARALLEL]

    def residuals(values: Floats) -> Floats:
        shares = Shares(*map(float, values))
        errors = [e for case in cases for kind in roofline_errors(*case, shares).values() for e in kind]
        return np.asarray([math.log1p(e) for e in errors])

    start = np.asarray(astuple(Shares()))
    fitted = least_squares(residuals, start, x_scale=start, bounds=(start * 0.05, start * 4), loss="soft_l1")
    return Shares(*(float(f"{value:.2g}") for value in fitted.x))


@tabular(
    *("GPU, model", "tp", f"prompts of {', '.join(map(str, PROMPTS))}"),
    *(f"decode, batch {', '.join(map(str, BATCHES))} at 8192", "mean absolute"),
)
def roofline_lines(shares: Shares) -> Iterator[Any]:
    yield "constants: " + ", ".join(f"{field.name} {getattr(shares, field.name):g}" for field in fields(Shares)) + "\n"
    for gpu in (*FITTED, HELD_OUT):
        for model in FITTED_MODELS:
            for degree in TENSOR_PARALLEL:
                errors_of = roofline_errors(gpu, model, degree, shares)
                cells = [" ".join(f"{e:+.0%}" for e in errors_of["prompt"])]
                cells += [" ".join(f"{e:+.0%}" for e in errors_of["decode"][1::2])]
                mean = np.abs(errors_of["prompt"] + errors_of["decode"]).mean()
                yield f"{gpu} {model}", degree, *cells, f"{mean:.0%}"


@tabular("rows", "n", *(head for ms in OVERHEADS_MS for head in (f"bias at {ms:g} ms", "mean abs")))
def silicon_lines() -> Iterator[Any]:
    for group in GROUPS:
        errors = np.asarray([group_of for _, group_of in group_errors(group, OVERHEADS_MS)])
        biases, sizes = errors.mean(axis=0), np.abs(errors).mean(axis=0)
        pairs_of = ((f"{bias:+.1%}", f"{size:.1%}") for bias, size in zip(biases, sizes, strict=True))
        yield group.label, len(errors), *chain.from_iterable(pairs_of)


def main() -> int:
    parts: dict[str, Callable[[], Iterator[str]]] = {
        "interpolation": interpolation_lines,
        "roofline": lambda: roofline_lines(Shares()),
        "silicon": silicon_lines,
    }
    parser = argparse.ArgumentParser(description="Check step times against what is known.")
    parser.add_argument("parts", nargs="*", help=f"what to check: {', '.join(parts)} (default: all)")
    parser.add_argument("--fit", action="store_true", help="fit the roofline's constants anew and show their errors")
    options = parser.parse_args()
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(parts)}")
    try:
        if options.fit:
            parts["roofline"] = lambda: roofline_lines(fit_shares())
        for name in options.parts or (("roofline",) if options.fit else parts):
            show((*parts[name](), ""))
    except StepTimesError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
