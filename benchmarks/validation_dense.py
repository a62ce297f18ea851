"""Rooflines of cards beside measured kernels, without attention: part ``dense`` of ``validation.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_server.step_times.roofline import RooflineStepTimes, Shares

LAYER = {"qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "layernorm": 2, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
"""The kernels that a layer of the model runs in each step, and the number of runs of each kernel."""
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 288, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048)
MOST_SAMPLED = 32
"""Tokens of a step that reach the output layer."""


def dense_lines(data: Path, profiles: Sequence[tuple[str, str, str, str, int]]) -> Iterator[str]:
    """Of steps of 1 to 2,048 tokens on one GPU: sums of measured kernels, and the roofline with each set of shares."""
    yield "| card | model | shares | mean | mean abs | largest | at tokens |"
    yield "|---|---|---|---|---|---|---|"
    for card, gpu, folder, model, degree in profiles:
        if degree > 1 or find_model(model).experts:
            continue
        measured = np.asarray([_measured_ms(data, folder, model, tokens) for tokens in SIZES])
        for name, shares in (("the card's", None), ("general", Shares())):
            times = RooflineStepTimes(find_gpu(gpu), find_model(model), 1, 0.0, shares)
            modelled = np.asarray([times._fixed_s(tokens, min(tokens, MOST_SAMPLED)) * 1e3 for tokens in SIZES])
            errors = modelled / measured - 1.0
            worst = int(np.argmax(np.abs(errors)))
            yield (
                f"| {card} | {model} | {name} | {errors.mean():+.1%} | {np.abs(errors).mean():.1%} | "
                f"{errors[worst]:+.0%} | {SIZES[worst]} |"
            )


def _measured_ms(data: Path, folder: str, model: str, tokens: int) -> float:
    place = data / "validation/llmservingsim/profile" / folder
    dense, sampled = pd.read_csv(place / "dense.csv.gz"), pd.read_csv(place / "per_sequence.csv.gz")
    kernels = LAYER | ({"qk_norm": 1} if "qk_norm" in set(dense.layer) else {})
    layer_us = sum(times * _at(dense, name, tokens) for name, times in kernels.items())
    once_us = sum(_at(dense, name, tokens) for name in ("embedding", "final_layernorm"))
    once_us += sum(_at(sampled, name, min(tokens, MOST_SAMPLED)) for name in ("lm_head", "sampler"))
    return (find_model(model).layers * layer_us + once_us) / 1e3


def _at(table: Any, name: str, size: int) -> float:
    rows = table[table.layer == name]
    return float(np.interp(size, rows.iloc[:, 1], rows.time_us))
