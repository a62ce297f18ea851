"""One-offs: requests that belong to no conversation, such as chats. They run before programs, within their share.

Order by program puts a chat of two seconds behind every agent that arrived before it. One-offs take little memory and
are soon gone, so they run first, as long as they take less than a fixed share of the engine's work. Beyond it they
queue as programs do. docs/server/promises.md says what this promises to both.
"""

from __future__ import annotations

from continuum_server.policy.facts import Machine, ProgramState, TurnStart, TurnState
from continuum_server.policy.holds import USUAL_PREFILL

SHARE = 0.92
"""Share of the engine's work up to which one-offs run first."""
WINDOW_S = 40.0
"""Engine seconds of work over which the share is averaged. The latest count most."""

SMALL = 1 / 64
"""Share of the KV pool up to which the first prompt of a program is small."""
FEW = 1 / 3
"""Programs whose first prompt is small are one-offs at first if a smaller share of them sent a second turn."""
RECENT = 64
"""Number of first and second turns from which that share is learned."""


class OneOffs:
    """How much of the engine's recent work one-offs have taken, and which first turns are one-offs.

    Args:
        enabled: whether one-offs run before programs.
    """

    def __init__(self, machine: Machine, enabled: bool) -> None:
        self._enabled = enabled
        self._small_tokens = SMALL * machine.kv_tokens
        self._prefill = machine.prefill if machine.prefill.seconds(1) > 0.0 else USUAL_PREFILL
        self._token_s = None if machine.decode is None else machine.decode.full_token_s(machine.kv_tokens)
        self._taken = 1.0
        self._firsts = self._seconds = RECENT / 2
        """How many first turns with small prompts ended lately, and how many of these programs sent a second one."""

    @property
    def first(self) -> bool:
        """Whether one-offs now run before programs."""
        return self._enabled and self._taken < SHARE

    def includes(self, turn: TurnState) -> bool:
        """Whether a turn that arrives is a one-off: it names no program, or begins one that will hardly go on."""
        if not turn.tagged:
            return True
        if turn.program.turns_arrived or not self._begins_small(turn.program, turn.prompt_tokens):
            return False
        return self._enabled and (turn.is_last or self._seconds < FEW * self._firsts)

    def _begins_small(self, program: ProgramState, prompt_tokens: int) -> bool:
        """Whether a program with this first prompt may have one turn only. Sub-agents belong to their parents."""
        return program.family is None and prompt_tokens <= self._small_tokens

    def returned(self, program: ProgramState) -> None:
        """Note that a program's second turn arrives."""
        if self._begins_small(program, program.last_prompt_tokens):
            self._seconds += 1.0

    def started(self, start: TurnStart) -> None:
        seconds = self._prefill.marginal_prefill_s
        self._take(start.turn, seconds(start.turn.prompt_tokens) - seconds(start.hit_tokens))

    def finished(self, turn: TurnState, context_tokens: int, output_tokens: int) -> None:
        if self._token_s is None:  # decode times are unknown: an output token counts as a prompt token
            self._take(turn, self._prefill.marginal_prefill_s(output_tokens))
        else:
            self._take(turn, output_tokens * context_tokens * self._token_s)
        first = turn.tagged and turn.program.turns_arrived == 1
        if first and self._begins_small(turn.program, turn.prompt_tokens):
            keep = 1.0 - 1.0 / RECENT
            self._firsts, self._seconds = keep * self._firsts + 1.0, keep * self._seconds

    def _take(self, turn: TurnState, work_s: float) -> None:
        """Note that the engine works on the turn."""
        self._taken += min(1.0, max(0.0, work_s) / WINDOW_S) * (turn.one_off - self._taken)
