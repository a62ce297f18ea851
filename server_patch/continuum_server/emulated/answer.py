"""The state of a request on the emulated device."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.outputs import LogprobsTensors


@dataclass(slots=True)
class PlannedAnswer:
    """A request, and the answer that the device generates for it."""

    request_id: str
    prompt_tokens: int
    planned: list[int]
    """The answer's tokens, with the end token. A request that generates more than these gets them again."""
    program: str | None = None
    is_last_step: bool = False
    """The client said that this is the program's last request."""
    generated: int = 0
    """Number of tokens generated so far."""
    decode_steps: int = 0
    """Number of steps that extended the answer."""
    ends: bool = True
    """The last planned token ends the answer."""
    logprobs: int = -1
    """Number of alternative tokens whose log probabilities the request wants; -1: no log probabilities at all."""
    prompt_logprobs: LogprobsTensors | None = None
    """The prompt's log probabilities, if the request wants them. The first answer token takes them along."""
    scripted: bool = False
    has_grammar: bool = False
    """The request has structured output. Nothing is drafted for it."""
    departed: bool = False
    """The request's grammar has refused a token of the script, so the answer ends as soon as the grammar allows."""
    completed: bool = False
    """The answer has reached its end token."""

    def decodes(self, scheduled: int, drafted: int = 0) -> bool:
        """Whether a step of ``scheduled`` tokens, drafts among them, extends the answer. Otherwise it computes part
        of the prompt."""
        return self.generated > 0 and scheduled == 1 + drafted

    def samples(self, computed: int) -> bool:
        """Whether a step that ends with ``computed`` tokens in KV samples a token."""
        return computed >= self.prompt_tokens + self.generated

    def drafts(self, number: int) -> list[int]:
        """Return the next ``number`` tokens of the plan, as a draft."""
        return [self.planned[(self.generated + ahead) % len(self.planned)] for ahead in range(number)]

    def next_token(self) -> int:
        token = self.planned[self.generated % len(self.planned)]
        self.generated += 1
        return token

    def departs(self, allowed: bool) -> bool:
        """Note whether the grammar allows the latest token. Return whether this is the script's first refused token."""
        first = self.scripted and not allowed and not self.departed
        self.departed |= first
        return first

    @property
    def over(self) -> bool:
        """Whether the planned tokens are no longer followed, because they are used up or a grammar refused one."""
        return self.departed or (self.ends and self.generated > len(self.planned))

    def completes(self, token: int) -> bool:
        """Whether ``token`` is the answer's first end token. Asynchronous scheduling adds further tokens."""
        first = self.ends and token == self.planned[-1] and not self.completed
        self.completed |= first
        return first
