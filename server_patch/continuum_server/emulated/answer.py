"""A request on the emulated device, and the tokens it is going to generate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Answer:
    """What the device knows of one request."""

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

    def decodes(self, scheduled: int) -> bool:
        """A step of ``scheduled`` tokens extends the answer; any other computes part of the prompt."""
        return self.generated > 0 and scheduled == 1

    def samples(self, computed: int) -> bool:
        """With ``computed`` tokens in KV the next one is sampled."""
        return computed >= self.prompt_tokens + self.generated

    def next_token(self) -> int:
        token = self.planned[self.generated % len(self.planned)]
        self.generated += 1
        return token

    @property
    def just_completed(self) -> bool:
        """The token before was the last; steps in flight beyond it (asynchronous scheduling) do not count again."""
        return self.ends and self.generated == len(self.planned)
