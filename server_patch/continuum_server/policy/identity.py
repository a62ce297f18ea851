"""Which program a request continues: the one that its id names, or the one whose prompt it extends."""

from __future__ import annotations

from continuum_server.policy.facts import ProgramState
from continuum_server.policy.pins import Pins
from continuum_server.policy.programs import Programs
from continuum_server.policy.recognise import Prompt


class Identity:
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
        program = self.programs.find(program_id, prompt, namespace)
        if program is None:
            parents = self.programs.of(parent_id, namespace) if parent_id is not None else []
            program = self._new(program_id, now_s, parents[-1] if parents else None, namespace)
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
        if match is not None and match.continues:
            program = match.program
        else:
            first_id = session_id if is_family and session_id is not None else name
            others = self.programs.of(first_id, namespace) if is_family else []
            parent = match.program if match is not None else others[0] if others else None
            program = self._new(name if others else first_id, now_s, parent, namespace)
        prompts.arrived(scope, program, prompt, match)
        return program

    def _new(self, program_id: str, now_s: float, parent: ProgramState | None, namespace: str | None) -> ProgramState:
        program = self.programs.add(program_id, now_s, self._sequence + 1, parent, namespace)
        for idle in self.programs.superfluous(program):
            if idle.turn is None and self._pins.firm(idle) is None and idle is not program:
                self.programs.forget(idle)
        return program
