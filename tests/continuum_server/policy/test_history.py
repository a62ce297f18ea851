"""Prompts whose head changes in each turn: whose they are, and where they left the one before."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from continuum_server.policy.facts import ProgramState
from continuum_server.policy.history import SHORTEST, history_of
from continuum_server.policy.identity import Identity
from continuum_server.policy.recognise import Prompt

BLOCK = 16


def words(seed: object, number: int) -> list[int]:
    drawn = random.Random(str(seed))
    return [drawn.randrange(100, 50_000) for _ in range(number)]


def prompt_of(ids: Sequence[int]) -> Prompt:
    hashes, last = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        last = hash((last, *ids[end - BLOCK : end]))
        hashes.append(last)
    return Prompt(len(ids), hashes, ids)


class Session:
    """An agent's conversation, with a line that changes behind its rules, and the server's programs."""

    def __init__(self, rules: int, task: int, known_agent: bool = True) -> None:
        self.rules, self.said = words("rules", rules), words("task", task)
        self.known_agent = known_agent
        self.identity = Identity(100, BLOCK, {})

    def turn(self, line: Sequence[int], prompt_id: str = "s") -> ProgramState:
        """Send a turn, and let it finish."""
        ids = [*self.rules, *line, *self.said]
        return self.send(ids, prompt_id)

    def send(self, ids: Sequence[int], prompt_id: str = "s") -> ProgramState:
        identity, prompt, number = self.identity, prompt_of(ids), self.identity.next_sequence()
        if self.known_agent:
            program = identity.recognise(f"r{number}", 0.0, prompt, None, prompt_id, is_family=True)
        else:
            program = identity.program_for(prompt_id, 0.0, prompt=prompt)
        identity.programs.note_busy(program, None, ids)
        program.turns_arrived += 1
        program.prompt_tokens = program.last_prompt.tokens = len(ids)
        answer = words(("answer", number), 40)
        program.context_tokens = len(ids) + len(answer)
        identity.programs.prompts.finished(program, answer, prompt_of([*ids, *answer]).blocks or ())
        identity.programs.note_idle(program)
        self.said += [*answer, *words(("tool", number), 200)]
        return program


@pytest.mark.parametrize("known_agent", [True, False])
@pytest.mark.parametrize(("rules", "task"), [(2000, 80), (0, 1000), (700, 2000)])
def test_a_line_that_changes_does_not_end_a_conversation(known_agent: bool, rules: int, task: int) -> None:
    """Its head grows, as the tokens that are left are told again; a date of the same length; a line that goes away."""
    session = Session(rules, task, known_agent)
    lines = [words(("left", number), 12 * number) for number in range(4)] + [words("date", 36), words("other", 36), []]
    programs = [session.turn(line) for line in lines]
    assert len(set(programs)) == 1
    left = programs[-1].last_prompt.left
    assert left is not None
    assert left.turn == 6
    assert left.times >= 5  # the first change may be in the last eighth
    assert left.token == rules // BLOCK * BLOCK


def test_where_a_prompt_left_the_one_before_is_known_to_1_64() -> None:
    ids = words("all", 60_000)
    prompt = prompt_of(ids)
    history = history_of(ids, prompt.blocks, len(ids))
    assert history is not None
    for at in (0, 1, 15, 16, 212, 2047, 2048, 5000, 48_000, 59_990):
        other = prompt_of([*ids[:at], 7, *ids[at:]])
        token = history.repeated(other.blocks or (), BLOCK)
        assert token <= at < token + max(2 * BLOCK, at / 64 + BLOCK)
    assert history.repeated(prompt.blocks or (), BLOCK) > len(ids) * 63 / 64 - BLOCK


@pytest.mark.parametrize("known_agent", [True, False])
def test_another_conversation_behind_the_same_rules_is_another_program(known_agent: bool) -> None:
    session = Session(4000, 100, known_agent)
    first = session.turn(words("left", 12))
    other = [*session.rules, *words("else", 12), *words("a title, please", 60)]
    assert session.send(other) is not first


def test_an_id_of_another_session_matches_nothing() -> None:
    session = Session(2000, 80)
    first = session.turn(words("left", 12))
    assert session.turn(words("else", 12), "another session") is not first


@pytest.mark.parametrize(("tokens", "goes_on"), [(SHORTEST - 1, False), (SHORTEST, True)])
def test_a_short_prompt_is_not_sought_behind_another_head(tokens: int, goes_on: bool) -> None:
    session = Session(0, tokens - 12)
    first = session.turn(words("a", 12))
    assert (session.turn(words("b", 12)) is first) == goes_on


def test_a_program_that_runs_is_not_continued() -> None:
    session = Session(2000, 80)
    first = session.turn(words("a", 12))
    first.turn = object()  # type: ignore[assignment]
    assert session.turn(words("b", 12)) is not first
