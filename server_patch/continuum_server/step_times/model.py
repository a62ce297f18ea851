"""How long one engine step takes on a GPU: the interface of all sources of step times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class StepTimesError(Exception):
    """Base of this package's errors.

    StepTimesError
    ├── UnknownPair   no such GPU, model or tensor parallel degree; lists what exists
    ├── OutOfRange    the source does not cover this; names the quantity, its value and its range
    └── DoesNotFit    the weights leave no room for KV; says what is short
    """


class UnknownPair(StepTimesError):
    pass


class OutOfRange(StepTimesError):
    pass


class DoesNotFit(StepTimesError):
    pass


def check_range(what: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside its range; nothing in this package extrapolates.

    Raises:
        OutOfRange: naming the quantity, its value and the range.
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
    """Where step times come from. It is written to every run's manifest."""

    kind: Literal["measured-table", "user-table", "roofline", "profile"]
    """``user-table``: one that `step-times build` wrote into the user's cache."""
    source: str
    version: str
    licence: str
    gpu: str
    model: str
    tensor_parallel: int
    step_overhead_ms: float
    """Added to every step for what kernel times leave out: scheduling, sampling, launches."""
    notes: str = ""
    request_overhead_ms: float = 0.0
    """Added to every step for each of its requests."""
    overhead: str = "given"
    """Where the two overheads come from."""
    attention: str = ""
    """The attention kernel of steps with prompt chunks, and what its times stand on."""
    band: str = "mid"
    """Which end of the attention's uncertainty these times are: low, mid or high."""


class StepTimes(Protocol):
    """Seconds of GPU steps. Deterministic."""

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        """One step over these prefill chunks and ``decodes`` decoding requests.

        Args:
            chunks: prompt parts computed in the step.
            decodes: requests that generate one token each.
            decode_context_tokens: sum over those requests of the tokens they attend to.

        Raises:
            OutOfRange: the source does not cover such a batch.
        """
        ...

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        """Times of ``steps`` decode steps in a row; each step adds ``decodes`` tokens of context.

        Bit-identical to calling ``step_s`` for each step.
        """
        ...

    def prefill_s(self, tokens: int, prefix_tokens: int = 0) -> float:
        """One prompt part alone, in one step."""
        ...

    @property
    def provenance(self) -> Provenance: ...


@dataclass(slots=True)
class Batch:
    """The work that one call of the scheduler gave the GPU."""

    chunks: list[PrefillChunk] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0

    def add(self, tokens: int, computed: int, decoding: bool) -> None:
        """Add ``tokens`` of a request that has ``computed`` tokens in KV already."""
        if decoding:
            self.decodes += 1
            self.decode_context_tokens += computed + 1
        else:
            self.chunks.append(PrefillChunk(tokens, computed))

    def step_s(self, times: StepTimes) -> float:
        return times.step_s(self.chunks, self.decodes, self.decode_context_tokens)
