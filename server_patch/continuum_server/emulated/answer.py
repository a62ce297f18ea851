"""The state of a request on the emulated device."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.outputs import LogprobsTensors


@dataclass(slots=True)
class Answer:
    """A request, and the answer that the device generates for it."""

    request_id: str
    prompt_tokens: int
    planned: list[int]
    """The answer's tokens, with the end token. A request that generates more than these gets them again."""
    program: str | None = None
    is_last: bool = False
    """The client said that this is the program's last request."""
    generated: int = 0
    """Number of tokens generated so far."""
    ends: bool = True
    """The last planned token ends the answer."""
    logprobs: int = -1
    """Number of alternative tokens whose log probabilities the request wants; -1: no log probabilities at all."""
    prompt_logprobs: LogprobsTensors | None = None
    """The prompt's log probabilities, if the request wants them. The first answer token takes them along."""

    def decodes(self, scheduled: int) -> bool:
        """Whether a step of ``scheduled`` tokens extends the answer. Otherwise it computes part of the prompt."""
        return self.generated > 0 and scheduled == 1

    def samples(self, computed: int) -> bool:
        """Whether a step that ends with ``computed`` tokens in KV samples a token."""
        return computed >= self.prompt_tokens + self.generated

    def next_token(self) -> int:
        token = self.planned[self.generated % len(self.planned)]
        self.generated += 1
        return token

    @property
    def just_completed(self) -> bool:
        """Whether the latest token ended the answer. False after further tokens, which asynchronous scheduling adds."""
        return self.ends and self.generated == len(self.planned)
