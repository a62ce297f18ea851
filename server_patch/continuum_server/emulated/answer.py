"""A request on the emulated device, and the tokens it is going to generate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Answer:
    """What the device knows of one request."""

    request_id: str
    prompt_tokens: int
    planned: list[int]
    """The answer's tokens with the end token; a request that goes on beyond them repeats them from their middle."""
    program: str | None = None
    is_last: bool = False
    """The client said that it is the program's last."""
    generated: int = 0
    ends: bool = True
    """The last planned token ends the answer."""
    logprobs: int = -1
    """Number of alternatives of which the request wants log probabilities; -1: not even of the token itself."""

    def decodes(self, scheduled: int) -> bool:
        """Whether a step of ``scheduled`` tokens extends the answer; otherwise it computes part of the prompt."""
        return self.generated > 0 and scheduled == 1

    def samples(self, computed: int) -> bool:
        """The token that is sampled when ``computed`` tokens are in KV."""
        return computed >= self.prompt_tokens + self.generated

    def next_token(self) -> int:
        token = self.planned[self.generated % len(self.planned)]
        self.generated += 1
        return token

    @property
    def just_completed(self) -> bool:
        """The token before was the last one. Later steps (asynchronous scheduling) do not count again."""
        return self.ends and self.generated == len(self.planned)
