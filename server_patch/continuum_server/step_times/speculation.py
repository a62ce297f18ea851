"""Speculative decoding as a model: how many drafted tokens are accepted, and what drafts and their verification cost.

Nothing is drafted, and no text is compared. A decode step of a request yields floor((k+1) A) - floor(k A) tokens in its
k-th step, where A is the acceptance length: the mean number of tokens of a step, with the one that the model itself
adds. Its variation from text to text is not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from continuum_server.step_times.model import PrefillChunk, StepTimes, StepTimesError
from continuum_server.step_times.specs import Model

MILLION = 1_000_000
_FORM = re.compile(r"(\d{1,2}):(\d{1,2}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a draft model does for each request in each step."""

    drafts: int
    """Number of tokens that are drafted."""
    acceptance_length: float
    """Mean number of tokens that a step yields."""

    @property
    def _millionths(self) -> int:
        """The acceptance length without rounding errors: its text has at most six decimals."""
        return round(self.acceptance_length * MILLION)

    def tokens(self, step: int) -> int:
        """Return the tokens of a request's decode step, counted from 0."""
        return (step + 1) * self._millionths // MILLION - step * self._millionths // MILLION

    def steps(self, tokens: int) -> int:
        """Return the number of decode steps that yield at least so many tokens."""
        return -(-tokens * MILLION // self._millionths)


def read_speculation(text: str) -> Speculation:
    """Read ``DRAFTS:LENGTH``, such as ``3:2.8``.

    Raises:
        StepTimesError: the text has another form, or the length is not from 1 to DRAFTS + 1.
    """
    parts = _FORM.fullmatch(text)
    if parts is None or int(parts[1]) < 1:
        raise StepTimesError(f"--speculative {text}: expected DRAFTS:LENGTH, such as 3:2.8")
    made = Speculation(int(parts[1]), float(parts[2]))
    if not 1.0 <= made.acceptance_length <= made.drafts + 1:
        raise StepTimesError(f"--speculative {text}: the acceptance length must be 1 to {made.drafts + 1}")
    return made


def draft_share(model: Model) -> float:
    """Return the time of drafting a token as a share of a decode step: one more layer and the output layer (as
    multi-token prediction and EAGLE have), by the parameters that a token uses."""
    used = model.experts_used / model.experts if model.experts else 0.0
    layer = (model.always_parameters + used * model.expert_parameters) / model.layers
    head = model.head_parameters / layer
    return (1.0 + head) / (model.layers + head)


class SpeculativeStepTimes(StepTimes):
    """``StepTimes`` with speculative decoding.

    A step multiplies the drafted tokens of each decode beside its last token, and reads the decode's KV once for all of
    them. Before it the tokens were drafted one by one.

    Args:
        times: the times of the model alone.
        speculation: how many tokens are drafted and accepted.
        share: ``draft_share`` of the model.
    """

    def __init__(self, times: StepTimes, speculation: Speculation, share: float) -> None:
        self._times, self._speculation, self._share = times, speculation, share
        note = (
            f"speculative decoding is a model: {speculation.drafts} drafts of {share:.1%} of a decode step each, "
            f"{speculation.acceptance_length:g} tokens a step"
        )
        self.provenance = replace(times.provenance, notes="; ".join(filter(None, (times.provenance.notes, note))))

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        if not decodes:
            return self._times.step_s(chunks, 0, 0)
        drafts = self._speculation.drafts
        verified = decodes * (drafts + 1)
        draft_s = drafts * self._share * self._times.step_s((), decodes, decode_context_tokens)
        return draft_s + self._times.step_s(chunks, verified, max(decode_context_tokens, verified))

    def answer_s(self, context_tokens: int, tokens: int) -> float:
        steps = range(self._speculation.steps(tokens))
        length = self._speculation.acceptance_length
        return sum(self.step_s((), 1, context_tokens + int(step * length)) for step in steps)

    def request_s(self, prompt_tokens: int) -> float:
        return self._times.request_s(prompt_tokens)

    def notes(self) -> tuple[str, ...]:
        return self._times.notes()
