"""Hold the tables against ``aiconfigurator-core`` at points off the grid, and the roofline against the tables.

    python -m continuum_server.step_times.check

The numbers in docs/results/step-times.md are what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

from continuum_server.step_times.build import _handle, pairs
from continuum_server.step_times.catalog import find_gpu, find_model, load_step_times
from continuum_server.step_times.model import StepTimes
from continuum_server.step_times.roofline import RooflineStepTimes

Errors = list[float]


def interpolation_errors(model: str, gpu: str, tensor_parallel: int, points: int, seed: int) -> dict[str, Errors]:
    """Relative errors of prefill and decode times at random batches, without the step overhead."""
    rng = np.random.default_rng(seed)
    handle, times = _handle(model, gpu, tensor_parallel), load_step_times(gpu, model, tensor_parallel, 0.0)
    out: dict[str, Errors] = {"prefill": [], "decode": []}
    for _ in range(points):
        chunk = int(np.exp(rng.uniform(np.log(16), np.log(8192))))
        prefix = int(rng.choice([0, np.exp(rng.uniform(np.log(128), np.log(100_000)))]))
        truth = handle.predict_prefill_latency(1, prefix + chunk, prefix)
        out["prefill"].append(times.prefill_s(chunk, prefix) * 1e3 / truth - 1)
        batch = int(rng.integers(1, 257))
        context = int(np.exp(rng.uniform(np.log(64), np.log(60_000))))
        truth = handle.predict_decode_latency(batch, context, 2)
        out["decode"].append(times.step_s((), batch, batch * context) * 1e3 / truth - 1)
    return out


def roofline_errors(model: str, gpu: str) -> dict[str, Errors]:
    """Relative differences of the roofline from the measured table."""
    measured = load_step_times(gpu, model, 1, 0.0)
    modelled = RooflineStepTimes(find_gpu(gpu), find_model(model), 1, 0.0)

    def errors(ask: Callable[[StepTimes, int], float], values: tuple[int, ...]) -> Errors:
        return [ask(modelled, value) / ask(measured, value) - 1 for value in values]

    return {
        "prefill": errors(lambda times, n: times.prefill_s(n), (512, 2048, 8192, 32768)),
        "decode": errors(lambda times, n: times.step_s((), n, n * 8192), (1, 8, 32, 64)),
    }


def rows() -> Iterator[str]:
    yield "| table | prefill mean | prefill max | decode mean | decode max |\n|---|---|---|---|---|"
    for model, gpu, tensor_parallel in pairs():
        errors = interpolation_errors(model, gpu, tensor_parallel, points=300, seed=1)
        cells = [f"{gpu} {model} tp{tensor_parallel}"]
        for kind in ("prefill", "decode"):
            absolute = np.abs(errors[kind])
            cells += [f"{absolute.mean():.2%}", f"{absolute.max():.1%}"]
        yield "| " + " | ".join(cells) + " |"
    yield "\n| roofline against table | prefill 512, 2K, 8K, 32K | decode 1, 8, 32, 64 x 8K |\n|---|---|---|"
    for gpu in ("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb"):
        for model in ("llama-3.1-8b", "llama-3.1-70b"):
            found = roofline_errors(model, gpu)
            cells = [" ".join(f"{e:+.0%}" for e in found[kind]) for kind in ("prefill", "decode")]
            yield f"| {gpu} {model} | {cells[0]} | {cells[1]} |"


if __name__ == "__main__":
    for line in rows():
        sys.stdout.write(line + "\n")
