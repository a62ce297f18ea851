"""Curves through step times, which tell a policy the GPU's speed."""

from __future__ import annotations

import numpy as np

from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.step_times.model import StepTimes


def fit_prefill(times: StepTimes, max_tokens: int) -> PrefillCurve:
    """Fit a quadratic to the prefill times of 1K, 2K, 4K ... tokens. With relative errors short prompts count too."""
    lengths = [min(1024, max_tokens // 4)]
    while lengths[-1] * 2 <= min(max_tokens, 131072):
        lengths.append(lengths[-1] * 2)
    seconds = [times.prefill_s(n) for n in lengths]
    a, b, c = np.polyfit(lengths, seconds, 2, w=1.0 / np.asarray(seconds))
    return PrefillCurve(float(a), float(b), float(c), times.provenance.kind)


def fit_decode(times: StepTimes) -> DecodeLine:
    """Return the line through the times of two decode steps, of eight requests with 1K and with 8K tokens each."""
    few, many = 8 * 1024, 8 * 8192
    few_s, many_s = times.step_s((), 8, few), times.step_s((), 8, many)
    token_s = max(0.0, (many_s - few_s) / (many - few))
    return DecodeLine(few_s - token_s * few, token_s)
