"""What a policy may know of a GPU's speed: curves through the step times of a source."""

from __future__ import annotations

import numpy as np

from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.step_times.model import StepTimes


def fit_prefill(times: StepTimes, max_tokens: int) -> PrefillCurve:
    """The quadratic through prefill times at 1K, 2K, 4K ... tokens, weighted so that short prompts count too."""
    lengths = [min(1024, max_tokens // 4)]
    while lengths[-1] * 2 <= min(max_tokens, 131072):
        lengths.append(lengths[-1] * 2)
    seconds = [times.prefill_s(n) for n in lengths]
    a, b, c = np.polyfit(lengths, seconds, 2, w=1.0 / np.asarray(seconds))
    return PrefillCurve(float(a), float(b), float(c), times.provenance.kind)


def fit_decode(times: StepTimes) -> DecodeLine:
    """The line through the times of two decode steps: eight requests with 1K tokens each, and with 8K each."""
    few, many = 8 * 1024, 8 * 8192
    few_s, many_s = times.step_s((), 8, few), times.step_s((), 8, many)
    token_s = max(0.0, (many_s - few_s) / (many - few))
    return DecodeLine(few_s - token_s * few, token_s)
