"""Step times with pipeline stages, which are groups of GPUs with a part of the model's layers each (vLLM's
``--pipeline-parallel-size``).

vLLM runs as many batches at the same time as there are stages. A step in this module generates one token of every
request. The requests are divided evenly into batches. A step takes as long as a batch needs for all stages, or as long
as the busiest stage needs for all batches, whichever is longer. Not modelled are sending activations from stage to
stage, batches of uneven size, and the first pass of a prompt with several chunks, during which later stages are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from continuum_server.step_times.model import OutOfRange, PrefillChunk, StepTimes


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """Return the number of layers of each stage, as in vLLM (``vllm/distributed/utils.py``, ``get_pp_indices``).

    The remainder of the division goes to the stages before the last.

    Raises:
        OutOfRange: there are fewer layers than stages.
    """
    if not 1 <= stages <= layers:
        raise OutOfRange(f"{stages} pipeline stages: the model's {layers} layers make 1 to {layers} stages")
    counts = [layers // stages] * stages
    for number in range(2, layers % stages + 2):
        counts[-number] += 1
    return counts


def staged(times: StepTimes, layers: int, stages: int, chunk_tokens: int) -> StepTimes:
    """Return the step times of a model with ``layers`` layers in ``stages`` stages; ``times`` for a single stage.

    Raises:
        OutOfRange: there are fewer layers than stages.
    """
    busiest = max(layers_of_stages(layers, stages)) / layers
    return times if stages == 1 else StagedStepTimes(times, stages, busiest, chunk_tokens)


class StagedStepTimes(StepTimes):
    """``StepTimes`` of an engine with pipeline stages.

    Args:
        times: times of a batch that passes all layers.
        stages: number of stages, two or more.
        busiest: the busiest stage's share of a batch's time.
        chunk_tokens: largest number of tokens in a batch. A longer chunk is divided into several batches.
    """

    def __init__(self, times: StepTimes, stages: int, busiest: float, chunk_tokens: int) -> None:
        self._times, self._stages, self._busiest, self._most = times, stages, busiest, chunk_tokens
        note = f"{stages} pipeline stages, the busiest with {busiest:.0%} of a batch's time; even batches, no transfers"
        source = times.provenance
        self.provenance = replace(source, notes="; ".join(filter(None, (source.notes, note))))

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        pieces = [piece for chunk in chunks for piece in self._pieces(chunk)]
        batches = min(self._stages, len(pieces) + decodes)
        if batches == 1:
            return self._times.step_s(pieces, decodes, decode_context_tokens)
        mean = decode_context_tokens / decodes if decodes else 0.0
        # a batch without a chunk takes the decodes that do not divide evenly
        shares = [(decodes + batches - 1 - number) // batches for number in reversed(range(batches))]
        seconds = [
            self._times.step_s(pieces[number::batches], share, round(share * mean))
            for number, share in enumerate(shares)
        ]
        return max(*seconds, self._busiest * sum(seconds))

    def _pieces(self, chunk: PrefillChunk) -> list[PrefillChunk]:
        starts = range(0, chunk.tokens, self._most)
        return [PrefillChunk(min(self._most, chunk.tokens - at), chunk.prefix_tokens + at) for at in starts]
