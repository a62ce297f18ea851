"""What one emulated step computes: the requests in it, their lengths, and the modelled seconds they take."""

from __future__ import annotations

from dataclasses import dataclass, field

from continuum_server.step_times.model import PrefillChunk, StepTimes


@dataclass(slots=True)
class Answer:
    """A request on the emulated device and the tokens it is going to generate."""

    request_id: str
    prompt_tokens: int
    planned: list[int]
    """Tokens to come, the end token included; a request that goes on beyond them repeats from their middle."""
    program: str | None = None
    generated: int = 0
    ends: bool = True
    """The last planned token ends the answer."""
    logprobs: int = -1
    """Alternatives the request wants log probabilities of, beside the token itself; -1: not even of that."""

    def next_token(self) -> int:
        token = self.planned[self.generated % len(self.planned)]
        self.generated += 1
        return token

    @property
    def just_completed(self) -> bool:
        """The token before was the last; steps in flight beyond it (asynchronous scheduling) do not count again."""
        return self.ends and self.generated == len(self.planned)


@dataclass(slots=True)
class Batch:
    """The work of one step."""

    chunks: list[PrefillChunk] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0

    def add(self, answer: Answer, scheduled: int, computed: int) -> bool:
        """Count ``scheduled`` tokens of a request after ``computed`` ones; True where it samples a token."""
        known = answer.prompt_tokens + answer.generated
        if answer.generated and scheduled == 1:
            self.decodes += 1
            self.decode_context_tokens += computed + 1
        else:
            self.chunks.append(PrefillChunk(scheduled, computed))
        return computed + scheduled >= known

    def seconds(self, times: StepTimes) -> float:
        return times.step_s(self.chunks, self.decodes, self.decode_context_tokens)
