"""Which program a request continues: the one that its id names, or the one whose prompt it extends.

An id of one conversation, or of a known agent's session, also names a program whose prompt is not extended: one of
which most of the last prompt is repeated, its end included, behind a head that changed. It keeps its place.
A program with one turn, the only one with its id, is continued by any longer prompt, but from then on it stands where
a new program would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from continuum_server.policy.facts import ProgramState, TurnFinish, TurnState
from continuum_server.policy.history import Left, history_of
from continuum_server.policy.mechanism import Mechanism
from continuum_server.policy.pins import Pins
from continuum_server.policy.programs import Programs, kept_of, marks_of
from continuum_server.policy.recognise import Match, Prompt

MOST = 0.5
"""A program goes on behind a changed head if this share of its last prompt is repeated."""
LEFT = 7 / 8
"""A prompt leaves the program's last one if it repeats a smaller share of it from the start."""


class Identity(Mechanism):
    """Finds the programs of requests, and makes new ones.

    Args:
        pins: programs with a firm pin are not forgotten.
    """

    def __init__(self, max_programs: int, block_size: int, pins: Pins) -> None:
        self.programs = Programs(max_programs, block_size)
        """All programs that the engine remembers."""
        self._pins = pins
        self._sequence = 0

    def next_sequence(self) -> int:
        """Return the number of a request that arrives now."""
        self._sequence += 1
        return self._sequence

    def program_for(
        self,
        program_id: str,
        now_s: float,
        parent_id: str | None = None,
        prompt: Prompt = Prompt(),  # noqa: B008 - frozen
        namespace: str | None = None,
    ) -> ProgramState:
        """Return the program that a request with this id continues, or a new program."""
        same = self.programs.of(program_id, namespace)
        program = self.programs.find(program_id, prompt, namespace) or _moved(same, prompt, self.programs.block_size)
        if program is None and len(same) == 1 and _began(same[0]) and prompt.tokens > same[0].context_tokens:
            program = same[0]
            program.arrival_s, program.sequence = now_s, self._sequence + 1
        if program is None:
            parents = self.programs.of(parent_id, namespace) if parent_id is not None else []
            program = self._new(program_id, now_s, parents[-1] if parents else None, namespace)
        self._compare(program, prompt)
        return program

    def recognise(
        self,
        name: str,
        now_s: float,
        prompt: Prompt,
        namespace: str | None = None,
        session_id: str | None = None,
        is_family: bool = False,
    ) -> ProgramState:
        """Return the program that a request with this prompt continues, or a new program.

        Args:
            name: id of a new program.
            session_id: an id that several programs have. A prompt is compared with theirs only.
            is_family: the first program with the ``session_id`` is named by it, and is the parent of the others.
        """
        scope, prompts = (namespace, session_id), self.programs.prompts
        match = prompts.find(scope, prompt)
        unknown = is_family and (match is None or match.bare)
        moved = _moved(prompts.in_scope(scope), prompt, self.programs.block_size) if unknown else None
        if match is not None and match.continues:
            program = match.program
            if match.branches:
                self._split(match, now_s, prompt)
        elif moved is not None:
            program = moved
        else:
            first_id = session_id if is_family and session_id is not None else name
            others = self.programs.of(first_id, namespace) if is_family else []
            parent = match.program if match is not None else others[0] if others else None
            program = self._new(name if others else first_id, now_s, parent, namespace)
        prompts.arrived(scope, program, prompt, match, name)
        self._compare(program, prompt)
        return program

    def _compare(self, program: ProgramState, prompt: Prompt) -> None:
        """Note where the prompt leaves the program's last one, and remember it."""
        last = program.last_prompt
        history, last.left_at = last.history, None
        if history is not None and prompt.blocks is not None:
            repeated = history.repeated(prompt.blocks, self.programs.block_size)
            if repeated + self.programs.block_size < LEFT * history.tokens:
                times = 1 + (last.left.times if last.left is not None else 0)
                last.left_at = repeated
                last.left = Left(program.turns_arrived, repeated, history.tokens, times)
        last.history = history_of(prompt.ids, prompt.blocks, prompt.tokens)

    # ------------------------------------------------------------------------------- what happens

    def arrived(self, turn: TurnState, now_s: float) -> None:
        program, last = turn.program, turn.program.last_prompt
        turn.index, again = self.programs.note_busy(program, turn.tags.turn_id, turn.prompt)
        if again:  # no tool ran since its last finish
            program.last_finish_s = None
        if program.turns_arrived:
            self._note_kept(turn)
        last.tokens, last.marks = turn.prompt_tokens, marks_of(turn.blocks, last.common_blocks)
        last.head = turn.blocks[0] if turn.blocks else None

    def _note_kept(self, turn: TurnState) -> None:
        """Note how much of its program's last prompt the turn repeats."""
        program, left_at = turn.program, turn.program.last_prompt.left_at
        kept = kept_of(program, Prompt(turn.prompt_tokens, turn.blocks))
        repeated = turn.prompt_tokens if kept.blocks < 0 else kept.blocks * self.programs.block_size
        turn.repeated_tokens = min(repeated, program.prompt_tokens)
        turn.compacted = kept.compacted or (left_at is not None and 2 * left_at < program.prompt_tokens)

    def started(self, turn: TurnState, now_s: float, hit_tokens: int) -> None:
        last = turn.program.last_prompt
        if last.shared_blocks is None:
            last.shared_blocks = hit_tokens // self.programs.block_size
            last.marks = marks_of(turn.blocks, last.shared_blocks)

    def left(self, turn: TurnState, now_s: float) -> None:
        self.programs.note_idle(turn.program)

    def finished(self, finish: TurnFinish, answer: Sequence[int]) -> None:
        self.programs.prompts.finished(finish.turn.program, answer, finish.turn.blocks or ())

    def lost(self, turn: TurnState, context_tokens: int, output_tokens: int) -> None:
        self.programs.prompts.failed(turn.program)
        self.programs.note_failed(turn.program, turn.index, turn.prompt)

    # ------------------------------------------------------------------------------------------ programs

    def _split(self, match: Match, now_s: float, prompt: Prompt) -> None:
        """Let the turns that a program took since the match be those of a child: a fork's, or a side request's."""
        program, mark = match.program, match.mark
        later = self.programs.prompts.later(mark)
        branch = self._new(later[0].name, now_s, program, program.namespace)
        self.programs.prompts.split(mark, branch)
        self.programs.note_branch(branch, program, len(later))
        last = program.last_prompt
        program.prompt_tokens = last.tokens = mark.tokens
        program.context_tokens = mark.tokens + mark.answered
        blocks = (prompt.blocks or ())[: mark.tokens // self.programs.block_size]
        last.marks = marks_of(blocks, last.common_blocks)
        last.history = history_of((prompt.ids or ())[: mark.tokens], blocks, mark.tokens)

    def _new(self, program_id: str, now_s: float, parent: ProgramState | None, namespace: str | None) -> ProgramState:
        program = self.programs.add(program_id, now_s, self._sequence + 1, parent, namespace)
        for idle in self.programs.superfluous(program):
            if idle.turn is None and self._pins.firm(idle) is None and idle is not program:
                self.programs.forget(idle)
        return program


def _moved(programs: Iterable[ProgramState], prompt: Prompt, block_size: int) -> ProgramState | None:
    """Return the idle program of whose last prompt most is in this one, but not at its start; None: there is none."""
    best: tuple[float, ProgramState | None] = (MOST, None)
    for program in programs:
        history = program.last_prompt.history
        if program.turn is None and history is not None and prompt.ids is not None and prompt.blocks is not None:
            share = history.moved(prompt.ids, history.repeated(prompt.blocks, block_size))
            if share >= best[0]:
                best = share, program
    return best[1]


def _began(program: ProgramState) -> bool:
    """Whether the program has finished one turn."""
    return program.turn is None and program.turns_arrived == 1
