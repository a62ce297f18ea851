"""The time of an engine step on a GPU: the interface of all sources of step times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

CHUNK_SLACK_TOKENS = 8192
"""A prefix and a chunk together may exceed the longest context by one large chunk."""


class StepTimesError(Exception):
    """Base of this package's errors.

    StepTimesError
    ├── UnknownPair   an unknown GPU, model or tensor parallel degree; lists the known ones
    ├── OutOfRange    a value that the source does not cover; names the quantity, its value and its range
    └── DoesNotFit    the weights leave no room for KV; says how much memory there is
    """


class UnknownPair(StepTimesError):
    pass


class OutOfRange(StepTimesError):
    pass


class DoesNotFit(StepTimesError):
    pass


def check_range(what: str, value: float, low: float, high: float) -> None:
    """Check that a value is in its range, because this package never extrapolates.

    Raises:
        OutOfRange: the value is outside the range. The message names the quantity, its value and the range.
    """
    if not low <= value <= high:
        raise OutOfRange(f"{what} = {value:.9g}: outside {low:.9g} to {high:.9g}")


class PrefillChunk(NamedTuple):
    """The part of a prompt that one step computes."""

    tokens: int
    prefix_tokens: int
    """Tokens of the same request that are in KV before this chunk."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of step times, which is written to every run's manifest."""

    kind: Literal["measured-table", "roofline", "profile"]
    source: str
    version: str
    licence: str
    gpu: str
    model: str
    tensor_parallel: int
    step_overhead_ms: float
    """Time per step that is not in the kernel times: scheduling, sampling, launches."""
    notes: str = ""
    request_overhead_ms: float = 0.0
    """Time per step and request that is not in the kernel times."""
    overhead: str = "given"
    """The origin of the two overheads."""
    attention: str = ""
    """The attention kernel of steps with prompt chunks, and the origin of its times."""
    band: str = "mid"
    """Position in the uncertainty band of attention times: low, mid or high."""


class StepTimes(ABC):
    """The modelled times of GPU steps. Equal arguments give equal times."""

    provenance: Provenance

    @abstractmethod
    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        """Return the seconds of one step with these prefill chunks and ``decodes`` decoding requests.

        Args:
            chunks: parts of prompts that the step computes.
            decodes: number of requests that generate one token each.
            decode_context_tokens: sum over these requests of the tokens to which they attend.

        Raises:
            OutOfRange: the source does not cover such a batch.
        """

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        """Return the seconds of each of ``steps`` decode steps, of which each adds ``decodes`` tokens of context.

        The result is bit-identical to calling ``step_s`` for each step.
        """
        return [self.step_s((), decodes, decode_context_tokens + step * decodes) for step in range(steps)]

    def answer_s(self, context_tokens: int, tokens: int) -> float:
        """Return the seconds in which a request that decodes alone generates so many tokens."""
        return sum(self.decode_stretch_s(1, context_tokens, tokens))

    def request_s(self, prompt_tokens: int) -> float:
        """Return the seconds that a request takes besides its steps; 0.0: the source does not say."""
        return 0.0

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the results of the steps that were computed so far."""
        return ()

    def prefill_s(self, tokens: int, prefix_tokens: int = 0) -> float:
        """Return the seconds of a step with a single prefill chunk."""
        return self.step_s((PrefillChunk(tokens, prefix_tokens),), 0, 0)


@dataclass(slots=True)
class Batch:
    """The GPU's work after one call of the scheduler."""

    chunks: list[PrefillChunk] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0

    def add(self, tokens: int, computed: int, decoding: bool) -> None:
        """Add ``tokens`` of a request with ``computed`` tokens in KV."""
        if decoding:
            self.decodes += 1
            self.decode_context_tokens += computed + 1
        else:
            self.chunks.append(PrefillChunk(tokens, computed))

    def step_s(self, times: StepTimes) -> float:
        return times.step_s(self.chunks, self.decodes, self.decode_context_tokens)
