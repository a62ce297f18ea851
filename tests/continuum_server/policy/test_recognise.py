"""Programs recognised by their prompts: a world of conversations as chat templates write them, and its traps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from continuum_server.policy.facts import ProgramState
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.recognise import MOST_BLOCKS, MOST_SOUGHT, SOUGHT, Prompt, Recogniser
from continuum_server.policy.registry import make_policy
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import MACHINE

BLOCK = 16
START, END, ASSISTANT, THINK, CALL = range(1, 6)
"""Tokens of the template."""
NUMBERS = count(1)


def words(seed: object, number: int) -> list[int]:
    drawn = random.Random(str(seed))
    return [drawn.randrange(100, 50_000) for _ in range(number)]


def prompt_of(ids: Sequence[int]) -> Prompt:
    hashes, last = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        last = hash((last, *ids[end - BLOCK : end]))
        hashes.append(last)
    return Prompt(len(ids), hashes, ids)


@dataclass
class Message:
    role: int
    text: list[int]
    thought: list[int] = field(default_factory=list)
    tool: bool = False


@dataclass
class Conversation:
    """One agent's messages, in its own template."""

    system: list[int]
    thinks: bool
    """Its template opens answers with reasoning, which it drops from the history."""
    rewrites: bool
    """Its template writes tool calls otherwise than the model does."""
    messages: list[Message] = field(default_factory=list)
    program: ProgramState | None = None

    def ids(self, messages: Sequence[Message] | None = None) -> list[int]:
        out = list(self.system)
        for message in self.messages if messages is None else messages:
            text = message.text if not (self.rewrites and message.tool) else [CALL, *message.text[1:]]
            out += [START, message.role, *text, END]
        return [*out, START, ASSISTANT, *([THINK] if self.thinks else [])]

    def answer(self, name: object, tokens: int, tool: bool) -> tuple[Message, list[int]]:
        """Return an answer as a message, and as the model generates it."""
        thought = [*words((name, "thought"), 20), THINK] if self.thinks else []
        message = Message(ASSISTANT, words(name, tokens), thought, tool)
        return message, [*thought, *message.text, END]


class World:
    """The recogniser, and the truth about who sends what."""

    def __init__(self) -> None:
        self.recogniser = Recogniser(BLOCK)

    def send(self, ids: Sequence[int], key: str = "") -> ProgramState:
        """Let a request arrive. Return its program."""
        prompt = prompt_of(ids)
        found = self.recogniser.find(key, prompt)
        program = found.program if found is not None and found.continues else self.program(found and found.program)
        self.recogniser.arrived(key, program, prompt, found)
        program.turn = object()  # type: ignore[assignment]
        program.turns_arrived += 1
        return program

    def program(self, parent: ProgramState | None) -> ProgramState:
        number = next(NUMBERS)
        return ProgramState(str(number), 0.0, number, family=parent)

    def finish(self, program: ProgramState, ids: Sequence[int], answer: Sequence[int], tool: bool) -> None:
        program.turn = None
        self.recogniser.finished(program, answer, prompt_of([*ids, *answer]).blocks or (), tool)

    def abort(self, program: ProgramState) -> None:
        program.turn = None
        self.recogniser.failed(program)

    def turn(
        self, talk: Conversation, name: object, key: str = "", tool: bool = True, tokens: int = 30, says: int = 40
    ) -> ProgramState:
        """Play a whole turn of a conversation."""
        talk.messages.append(Message(0, words((name, "says"), says)))
        ids = talk.ids()
        program = self.send(ids, key)
        message, answer = talk.answer((name, "answers"), tokens, tool)
        self.finish(program, ids, answer, tool)
        talk.messages.append(message)
        return program


def talk_of(system: int = 200) -> Conversation:
    return Conversation(words("system", system), thinks=False, rewrites=False)


def copy_of(talk: Conversation) -> Conversation:
    return replace(talk, messages=list(talk.messages))


@pytest.mark.parametrize("says", [1, 5, 40])
def test_a_common_system_prompt_is_no_match(says: int) -> None:
    for system in range(180, 200):  # the last full block ends anywhere in it
        world, talks = World(), [talk_of(system) for _ in range(6)]
        programs = [
            [world.turn(talk, (number, turn), says=says) for number, talk in enumerate(talks)] for turn in range(3)
        ]
        assert len(set(programs[0])) == 6
        assert programs[0] == programs[1] == programs[2]


@pytest.mark.parametrize("at_once", [True, False])
def test_equal_conversations_keep_apart(at_once: bool) -> None:
    """Greedy samples of one task: equal prompts, equal answers, equal tools."""
    world, talks_of_all = World(), [talk_of() for _ in range(6)]
    programs: list[list[ProgramState]] = [[] for _ in talks_of_all]
    for number, talk in [] if at_once else enumerate(talks_of_all):
        programs[number] = [world.turn(talk, turn) for turn in range(4)]
    for turn in range(4 if at_once else 0):
        for number, talk in enumerate(talks_of_all):
            talk.messages.append(Message(0, words((turn, "says"), 40)))
            programs[number].append(world.send(talk.ids()))
        for number, talk in enumerate(talks_of_all):
            message, answer = talk.answer(turn, 30, True)
            world.finish(programs[number][-1], talk.ids(), answer, True)
            talk.messages.append(message)
    assert [len(set(each)) for each in programs] == [1] * 6
    assert len({each[0] for each in programs}) == 6


def test_a_fork_is_a_program_of_its_own() -> None:
    world, talk = World(), talk_of()
    world.turn(talk, 0)
    branch = copy_of(talk)
    program = world.turn(talk, 1)
    fork = world.turn(branch, "other")
    assert fork is not program
    assert fork.family is program


def test_an_agent_that_never_repeats_answers_is_one_program_from_its_second_turn_on() -> None:
    world, talk = World(), talk_of()
    programs = []
    for number in range(5):
        programs.append(world.turn(talk, number))
        talk.messages.pop()
    assert len(set(programs[1:])) == 1


def test_forgotten_programs_leave_nothing() -> None:
    world, talk = World(), talk_of()
    program = world.turn(talk, 0)
    world.recogniser.forget(program)
    assert (world.recogniser._scopes, world.recogniser._known) == ({}, {})
    assert world.turn(talk, 1) is not program


def test_the_search_is_bounded() -> None:
    world, talk = World(), talk_of()
    program = world.turn(talk, 0)
    assert world.turn(talk, 1, says=(MOST_BLOCKS - 50) * BLOCK) is program
    assert world.turn(talk, 2, says=(MOST_BLOCKS + 50) * BLOCK) is not program


def test_answers_are_sought_at_few_places() -> None:
    """However many earlier prompts a prompt extends."""
    world, read = World(), []
    for number in range(20):
        ids = words("task", 1600) + [7] * number
        world.finish(world.send(ids), ids, words(number, SOUGHT), True)

    class Ids(list[int]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if isinstance(at, slice) and len(found) > 200:  # no block, no end of an earlier prompt
                read.append(len(found))
            return found

    world.send(Ids([*words("task", 1600), *[7] * 20, *words("else", 3000)]))
    assert sum(read) == MOST_SOUGHT


KINDS = ("fork", "sample", "compact", "side", "copy")
KEYS = {"a": words("tools", 90), "b": words("tools", 90), "c": words("others", 133)}


class Crowd:
    """Conversations of several keys, whose requests come and end in any order."""

    def __init__(self, seed: int) -> None:
        self.seed, self.drawn, self.world = seed, random.Random(seed), World()
        self.owner: dict[ProgramState, Conversation] = {}
        self.key_of: dict[int, str] = {}
        """By ``id`` of the conversation."""
        self.talks: list[Conversation] = []
        self.running: list[tuple[ProgramState, Conversation, list[int], Message, list[int]]] = []

    def send(self, talk: Conversation, steady: bool = True) -> None:
        """Send a conversation's request. ``steady``: it must stay at its program, if it has one."""
        ids = talk.ids()
        program = self.world.send(ids, self.key_of[id(talk)])
        assert self.owner.setdefault(program, talk) is talk, "joined another conversation"
        assert not steady or talk.program in (None, program), "lost its program"
        talk.program = program
        message, answer = talk.answer((self.seed, next(NUMBERS)), self.drawn.choice((7, 30, 90)), tool=True)
        self.running.append((program, talk, ids, message, answer))

    def says(self, talk: Conversation) -> None:
        words_said = words((self.seed, next(NUMBERS)), self.drawn.choice((1, 20, 200)))
        talk.messages.append(Message(0, words_said))

    def begins(self, key: str, talk: Conversation, steady: bool = True) -> None:
        self.key_of[id(talk)] = key
        self.talks.append(talk)
        self.send(talk, steady)

    def new(self) -> None:
        key = self.drawn.choice(list(KEYS))
        talk = Conversation(KEYS[key], self.drawn.random() < 0.5, self.drawn.random() < 0.5)
        self.says(talk)
        self.begins(key, talk)

    def ends(self, well: bool) -> None:
        program, talk, ids, message, answer = self.running.pop(self.drawn.randrange(len(self.running)))
        if well:
            self.world.finish(program, ids, answer, True)
            talk.messages.append(message)
        else:
            self.world.abort(program)
            self.send(talk)

    def goes_on(self, talk: Conversation, how: str) -> None:
        branch = replace(talk, messages=list(talk.messages), program=None)
        if how == "side":
            self.aside(talk, branch)
            return
        if how == "copy":  # another key repeats the whole conversation, and goes on with it
            self.says(branch)
            self.begins(f"key {next(NUMBERS)}", branch, steady=False)
            return
        if how == "sample":  # the same first prompt again
            branch.messages = branch.messages[:1]
            self.begins(self.key_of[id(talk)], branch, steady=False)
            return
        if how == "compact":
            talk.messages[:-1] = [Message(0, words((self.seed, next(NUMBERS)), 100))]
            talk.program = None
        self.says(talk)
        self.send(talk)
        if how == "fork":
            self.says(branch)
            self.begins(self.key_of[id(talk)], branch, steady=False)

    def aside(self, talk: Conversation, side: Conversation) -> None:
        """Ask for a title or the like: with the whole history, or without its last answer."""
        whole = self.drawn.random() < 0.5
        if not whole:
            side.messages.pop()
        self.says(side)
        ids = side.ids()
        program = self.world.send(ids, self.key_of[id(talk)])
        assert self.owner.setdefault(program, talk) is talk, "a side request joined another conversation"
        assert (program is talk.program) == whole
        self.world.finish(program, ids, side.answer((self.seed, next(NUMBERS)), 9, tool=False)[1], False)

    def act(self) -> None:
        busy = {id(talk) for _, talk, *_ in self.running}
        idle = [talk for talk in self.talks if id(talk) not in busy]
        act = self.drawn.choice(("new", "well", "well", "aborted", "turn", "turn", "turn", *KINDS))
        if act in ("well", "aborted") and self.running:
            self.ends(act == "well")
        elif act in ("turn", *KINDS) and idle:
            self.goes_on(self.drawn.choice(idle), act)
        else:
            self.new()


@given(st.integers(0, 1 << 32))
def test_no_request_joins_another_conversation(seed: int) -> None:
    """Turns, forks, retries, parallel samples, side requests, compactions, and copies under another key, of
    conversations with one system prompt: a request is at its own conversation's program or at a new one, and a next
    turn always at its own."""
    crowd = Crowd(seed)
    for _ in range(crowd.drawn.randrange(5, 60)):
        crowd.act()


def table() -> ProgramTable:
    return ProgramTable(make_policy("working-set", {}, MACHINE), Guards(), MACHINE.kv_tokens)


def recognise(programs: ProgramTable, talk: Conversation, name: str, **said: Any) -> ProgramState:
    return programs.recognise(name, 0.0, prompt_of(talk.ids()), **said)


@pytest.mark.parametrize("is_family", [True, False])
def test_an_id_of_several_conversations_counts_where_the_prompt_continues(is_family: bool) -> None:
    programs, main, other = table(), talk_of(), Conversation(words("sub-agent", 100), False, False)
    said = {"session_id": "session", "is_family": is_family}
    first, second = recognise(programs, main, "r1", **said), recognise(programs, other, "r2", **said)
    assert (first.name, second.name) == ("session" if is_family else "r1", "r2")
    assert (second.root is first) == is_family
    assert first.root is first


def test_another_session_never_matches() -> None:
    programs, talk = table(), talk_of()
    talk.messages.append(Message(0, words("task", 50)))
    first = recognise(programs, talk, "r1", session_id="one")
    programs.known.prompts.failed(first)
    assert recognise(programs, talk, "r2", session_id="two") is not first
    assert recognise(programs, talk, "r3") is not first
    assert recognise(programs, talk, "r4", session_id="one") is first


def test_a_sub_agents_id_belongs_to_the_session_of_its_parent() -> None:
    """Claude Code: the main agent sends the session's id, a sub-agent an id of its own and the session's as parent."""
    programs, main = table(), talk_of()
    first = recognise(programs, main, "r1", session_id="session", is_family=True)
    sub_agent = programs.program_for("agent-7", 0.0, "session", prompt_of(words("sub-agent", 100)))
    assert sub_agent.root is first


def test_short_prompts_under_one_id_of_several_conversations_are_not_joined() -> None:
    programs = table()
    short = [prompt_of(words(text, 12)) for text in ("hi", "who")]
    found = [programs.recognise(f"r{n}", 0.0, prompt, None, "company") for n, prompt in enumerate(short)]
    assert found[0] is not found[1]
