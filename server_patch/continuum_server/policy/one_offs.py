"""One-offs: requests that belong to no conversation, such as chats. They run before programs, within their share.

Order by program puts a chat of two seconds behind every agent that arrived before it. One-offs take little memory and
are soon gone, so they run first, as long as they take less than a fixed share of the engine's work. Beyond it they
queue as programs do. docs/server/promises.md says what this promises to both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from continuum_server.policy.estimate import RecentShare
from continuum_server.policy.facts import Machine, TurnFinish, TurnState
from continuum_server.policy.lru import Lru
from continuum_server.policy.mechanism import Mechanism

ONE_OFFS_SHARE = 0.92
"""Share of the engine's work up to which one-offs run first."""
WINDOW_S = 40.0
"""Engine seconds of work over which the share is averaged. The latest count most."""

SMALL_PROMPT = 1 / 64
"""Share of the KV pool up to which the first prompt of a program is small."""
FEW = 1 / 3
"""Programs are one-offs at first if a smaller share of those with such a first prompt sent a second turn. It is learned
of small prompts with an id and of larger ones without."""
RECENT_TURNS = 64
"""Number of first and second turns from which that share is learned."""
SHAPES = 4096
"""Number of shapes of first prompts remembered. The shape that was not seen for longest is forgotten first."""
UNKNOWN_NAMED = 16.0, 10.0
"""Small first prompts with an id: so many first turns, and second ones, are assumed before the first."""
UNKNOWN = 8.0, 2.0
"""Large first prompts without an id: so many first turns, and second ones, are assumed before the first."""
ENOUGH = 12.0
"""A shape's own share counts from this number of first turns on, with those assumed."""


class OneOffs(Mechanism):
    """How much of the engine's recent work one-offs have taken, and which first turns are one-offs.

    Args:
        enabled: whether one-offs run before programs.
    """

    def __init__(self, machine: Machine, enabled: bool) -> None:
        self._enabled = enabled
        self._small_tokens = SMALL_PROMPT * machine.kv_tokens
        self._prefill = machine.prefill
        self._token_s = None if machine.decode is None else machine.decode.full_token_s(machine.kv_tokens)
        self._taken: defaultdict[str | None, float] = defaultdict(lambda: 1.0)
        """Share of one-offs in the engine's recent work, by API key."""
        self._named = Lru[str | None, RecentShare](lambda: RecentShare(RECENT_TURNS, *UNKNOWN_NAMED), SHAPES)
        """Of an API key's programs that send an id and begin with a small prompt, the share that sent a second turn."""
        self._shapes = Lru[Hashable, RecentShare](lambda: RecentShare(RECENT_TURNS, *UNKNOWN), SHAPES)
        """The share of programs without ids that sent a second turn, by the shape of their first prompt: its first
        block, which is the same for all runs of an agent, or about its size."""

    def first(self, key: str | None) -> bool:
        """Whether the one-offs of an API key now run before its programs."""
        return self._enabled and self._taken[key] < ONE_OFFS_SHARE

    def _includes(self, turn: TurnState) -> bool:
        """Whether a turn that arrives is a one-off: it names no program, or begins one that will hardly go on.

        A small first prompt without an id costs so little that it may always run first. Later turns tell agents.
        """
        if not turn.tagged:
            return True
        if turn.program.turns_arrived or turn.program.family is not None or not self._enabled:
            return False
        small, named = self.is_small(turn.prompt_tokens), turn.program.recognised_by != "prompt"
        if small and (turn.tags.is_last_step or not named):
            return True
        shares = self._shares(turn, turn.prompt_tokens)
        share = next((share for share in shares if share.trials >= ENOUGH), shares[-1] if shares else None)
        return share is not None and share.successes < FEW * share.trials

    def is_small(self, prompt_tokens: int) -> bool:
        """Whether a prompt takes so little that it matters to nobody else."""
        return prompt_tokens <= self._small_tokens

    def _shares(self, turn: TurnState, prompt_tokens: int) -> list[RecentShare]:
        """Return how often programs with such a first prompt go on, the most special knowledge first; none if it is not
        learned. Sub-agents belong to their parents."""
        small, named = self.is_small(prompt_tokens), turn.program.recognised_by != "prompt"
        if turn.program.family is not None or small != named:
            return []
        if named:
            return [self._named.of(turn.program.namespace)]
        key = turn.program.namespace
        alike: list[Hashable] = [("begins", turn.blocks[0])] if turn.blocks else []
        return [self._shapes.of((key, shape)) for shape in (*alike, ("size", prompt_tokens.bit_length()), "any")]

    def arrived(self, turn: TurnState, now_s: float) -> None:
        turn.one_off = self._includes(turn)
        if turn.program.turns_arrived == 1:
            for share in self._shares(turn, turn.program.last_prompt.tokens):
                share.add(trial=False, success=True)

    def started(self, turn: TurnState, now_s: float, hit_tokens: int) -> None:
        if turn.start_s is None:
            seconds = self._prefill.marginal_prefill_s
            self._take(turn, seconds(turn.prompt_tokens) - seconds(hit_tokens))

    def lost(self, turn: TurnState, context_tokens: int, output_tokens: int) -> None:
        self._worked(turn, context_tokens, output_tokens)

    def _worked(self, turn: TurnState, context_tokens: int, output_tokens: int) -> None:
        """Note the work on an answer, whole or aborted."""
        if self._token_s is None:  # decode times are unknown: an output token counts as a prompt token
            self._take(turn, self._prefill.marginal_prefill_s(output_tokens))
        else:
            self._take(turn, output_tokens * context_tokens * self._token_s)

    def finished(self, finish: TurnFinish, answer: Sequence[int]) -> None:
        turn = finish.turn
        self._worked(turn, finish.context_tokens, finish.output_tokens)
        if turn.tagged and turn.program.turns_arrived == 1:
            for share in self._shares(turn, turn.prompt_tokens):
                share.add(trial=True, success=False)

    def _take(self, turn: TurnState, work_s: float) -> None:
        """Note that the engine works on the turn."""
        key = turn.program.namespace
        self._taken[key] += min(1.0, max(0.0, work_s) / WINDOW_S) * (turn.one_off - self._taken[key])
