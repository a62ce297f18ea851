"""Programs recognised by their prompts: a world of conversations as chat templates write them, and its traps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from continuum_server.policy.facts import ProgramState
from continuum_server.policy.recognise import MOST_BLOCKS, MOST_SOUGHT, SHORT_TAIL, SOUGHT, Prompt, Recogniser
from hypothesis import example, given
from hypothesis import strategies as st
from policy_driver import Driver

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
    key: str = ""
    """The API key under which it is sent."""
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
        prompt, number = prompt_of(ids), next(NUMBERS)
        found = self.recogniser.find(key, prompt)
        program = ProgramState(str(number), 0.0, number, family=found and found.program)
        if found is not None and found.continues:
            if found.branches:
                self.recogniser.split(found.mark, program)
                self.split(found.program, program)
            program = found.program
        self.recogniser.arrived(key, program, prompt, found)
        program.turn = object()  # type: ignore[assignment]
        return program

    def split(self, program: ProgramState, branch: ProgramState) -> None:
        """Hear that the latest turns of a program are those of another one."""

    def finish(self, program: ProgramState, ids: Sequence[int], answer: Sequence[int]) -> None:
        program.turn = None
        self.recogniser.finished(program, answer, prompt_of([*ids, *answer]).blocks or ())

    def abort(self, program: ProgramState) -> None:
        program.turn = None
        self.recogniser.failed(program)

    def turn(self, talk: Conversation, name: object, says: int = 40) -> ProgramState:
        """Play a whole turn of a conversation."""
        talk.messages.append(Message(0, words((name, "says"), says)))
        ids = talk.ids()
        program = self.send(ids)
        message, answer = talk.answer((name, "answers"), 30, tool=True)
        self.finish(program, ids, answer)
        talk.messages.append(message)
        return program


def talk_of(system: int = 200) -> Conversation:
    return Conversation(words("system", system), thinks=False, rewrites=False)


@pytest.mark.parametrize("says", [1, 5, 40])
def test_a_common_system_prompt_is_no_match(says: int) -> None:
    for system in range(180, 200):  # the last full block ends anywhere in it
        world, talks = World(), [talk_of(system) for _ in range(6)]
        programs = [
            [world.turn(talk, (number, turn), says=says) for number, talk in enumerate(talks)] for turn in range(3)
        ]
        assert len(set(programs[0])) == 6
        assert programs[0] == programs[1] == programs[2]


@pytest.mark.parametrize("at_once", [6, 1])
def test_equal_conversations_keep_apart(at_once: int) -> None:
    """Six greedy samples of one task: equal prompts, equal answers, equal tools. So many run at the same time."""
    world, programs = World(), []
    for _ in range(0, 6, at_once):
        talk = talk_of()
        seen: list[list[ProgramState]] = []
        for turn in range(4):
            talk.messages.append(Message(0, words((turn, "says"), 40)))
            seen.append([world.send(talk.ids()) for _ in range(at_once)])
            message, answer = talk.answer(turn, 30, True)
            for program in seen[-1]:
                world.finish(program, talk.ids(), answer)
            talk.messages.append(message)
        assert all(each == seen[0] for each in seen)
        programs += seen[0]
    assert len(set(programs)) == 6


def test_a_fork_is_a_program_of_its_own() -> None:
    """Who goes on from an earlier turn has the program, and the turns since then are a fork's."""
    world, talk = World(), talk_of()
    forked: list[tuple[ProgramState, ProgramState]] = []
    world.split = lambda *pair: forked.append(pair)  # type: ignore[method-assign]
    world.turn(talk, 0)
    branch = replace(talk, messages=list(talk.messages))
    program = world.turn(talk, 1)
    assert world.turn(branch, "other") is program
    ((origin, fork),) = forked
    assert (origin, fork.family) == (program, program)
    assert [world.turn(talk, 2), world.turn(branch, 3)] == [fork, program]


def test_a_side_request_without_the_last_answer_is_a_child() -> None:
    """It repeats the answer before, so that only the prompt between tells it from a branch."""
    world, talk = World(), talk_of()
    branches: list[ProgramState] = []
    world.split = lambda _, branch: branches.append(branch)  # type: ignore[method-assign]
    program = [world.turn(talk, number) for number in range(3)][-1]
    side = replace(talk, messages=talk.messages[:-1])
    assert world.turn(side, "title").family is program
    assert world.turn(talk, 3) is program
    assert not branches


def test_who_says_more_after_an_interrupted_turn_goes_on() -> None:
    world, talk = World(), talk_of()
    program = world.turn(talk, 0)
    talk.messages.append(Message(0, words("interrupted", 40)))
    assert world.send(talk.ids()) is program
    world.abort(program)
    assert [world.turn(talk, number) for number in (1, 2)] == [program, program]


def test_forks_of_a_running_program_are_its_children() -> None:
    """Three sub-agents that begin with the whole conversation, and the agent that goes on when all have ended."""
    world, agent = World(), talk_of()
    program = [world.turn(agent, number) for number in range(4)][-1]
    forks = [replace(agent, messages=list(agent.messages)) for _ in range(3)]
    began = []
    for number, fork in enumerate(forks):
        fork.messages.append(Message(0, words(("part", number), 40)))
        began.append(world.send(fork.ids()))
    assert began[0] is program  # its next turn would look the same
    assert [fork.family for fork in began[1:]] == [program, program]
    for number, (fork, owner) in enumerate(zip(forks, began, strict=True)):
        message, answer = fork.answer(("part", number), 30, True)
        world.finish(owner, fork.ids(), answer)
        fork.messages.append(message)
    branches: list[ProgramState] = []
    world.split = lambda _, branch: branches.append(branch)  # type: ignore[method-assign]
    again = [world.turn(fork, ("again", number)) for number, fork in enumerate(forks)]
    assert again == began
    assert world.turn(agent, "back") is program
    assert world.turn(forks[0], "once more") in branches


@pytest.mark.parametrize(("tail", "goes_on"), [(1, True), (40, True), (SHORT_TAIL, True), (SHORT_TAIL + 1, False)])
@pytest.mark.parametrize("repeats", [True, False])
def test_a_tail_that_changes(tail: int, goes_on: bool, repeats: bool) -> None:
    """A reminder at the end of each prompt, which the next one does not repeat; with and without the own answers."""
    world, talk = World(), talk_of(1200)
    talk.messages.append(Message(0, words("task", 50)))
    programs = []
    for turn in range(5):
        # the next prompt has the first START, and leaves out the rest
        reminder = [] if tail == 1 else [START, 0, *words(("reminder", turn), tail - 4), END]
        ids = [*talk.ids()[:-2], *reminder, START, ASSISTANT]
        programs.append(world.send(ids))
        message, answer = talk.answer(("answers", turn), 30, True)
        world.finish(programs[-1], ids, answer)
        talk.messages += [message if repeats else talk.answer(("played", turn), 30, True)[0]]
        talk.messages.append(Message(0, words(("says", turn), 60)))
    assert (len(set(programs)) == 1) == goes_on


@pytest.mark.parametrize("name", [1, 2, 3, 4])
def test_a_role_may_have_several_tokens(name: int) -> None:
    """The name of the assistant, behind a token that opens messages of users too."""
    world, opened = World(), [START, *range(50, 50 + name), 49]
    history = [*words("system", 600), END]
    programs = []
    for turn in range(4):
        ids = [*history, START, 0, *words(("reminder", turn), 12), END, *opened]
        programs.append(world.send(ids))
        world.finish(programs[-1], ids, words(("answers", turn), 40))
        history += [*opened, *words(("played", turn), 40), END, START, 0, *words(("says", turn), 40), END]
    assert len(set(programs)) == 1


def test_other_questions_behind_one_system_prompt_are_no_tails_that_change() -> None:
    for answers in (True, False):
        world, programs = World(), []
        for number in range(4):
            talk = talk_of(1200)
            programs.append(world.turn(talk, ("asks", number), says=20))
            if answers:
                programs.append(world.turn(talk, ("asks on", number), says=20))
        assert len(set(programs)) == 4


def test_with_several_samples_of_a_prompt_an_unknown_answer_tells_nothing() -> None:
    world, talk = World(), talk_of()
    talk.messages.append(Message(0, words("task", 50)))
    samples = [world.send(talk.ids()) for _ in range(2)]
    for number, program in enumerate(samples):
        world.finish(program, talk.ids(), talk.answer(number, 30, True)[1])
    talk.messages += [talk.answer("another", 30, True)[0], Message(0, words("says", 60))]
    assert world.send(talk.ids()) not in samples


def test_an_agent_that_leaves_out_answers_is_one_program_from_its_second_turn_on() -> None:
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
    assert (world.recogniser._scopes, world.recogniser._histories) == ({}, {})
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
        world.finish(world.send(ids), ids, words(number, SOUGHT))

    class Ids(list[int]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if isinstance(at, slice) and len(found) > 600:  # no block, no end of an earlier prompt
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
        self.talks: list[Conversation] = []
        self.running: list[tuple[ProgramState, Conversation, list[int], Message, list[int]]] = []
        self.sender: Conversation | None = None
        self.world.split = self.split  # type: ignore[method-assign]

    def split(self, program: ProgramState, branch: ProgramState) -> None:
        """The turns since a fork are another program's: those of the conversation that had the program, or a side
        request's of the sender."""
        talk = self.owner[branch] = self.owner[program]
        if talk is not self.sender:
            del self.owner[program]
            talk.program = branch

    def send(self, talk: Conversation, steady: bool = True) -> None:
        """Send a conversation's request. ``steady``: it must stay at its program, if it has one."""
        ids, self.sender = talk.ids(), talk
        program = self.world.send(ids, talk.key)
        assert self.owner.setdefault(program, talk) is talk, "joined another conversation"
        assert not steady or talk.program in (None, program), "lost its program"
        talk.program = program
        message, answer = talk.answer((self.seed, next(NUMBERS)), self.drawn.choice((7, 30, 90)), tool=True)
        self.running.append((program, talk, ids, message, answer))

    def says(self, talk: Conversation) -> None:
        words_said = words((self.seed, next(NUMBERS)), self.drawn.choice((1, 20, 200)))
        talk.messages.append(Message(0, words_said))

    def begins(self, talk: Conversation, steady: bool = True) -> None:
        self.talks.append(talk)
        self.send(talk, steady)

    def new(self) -> None:
        key = self.drawn.choice(list(KEYS))
        talk = Conversation(KEYS[key], self.drawn.random() < 0.5, self.drawn.random() < 0.5, key)
        self.says(talk)
        self.begins(talk)

    def ends(self, well: bool) -> None:
        program, talk, ids, message, answer = self.running.pop(self.drawn.randrange(len(self.running)))
        if well:
            self.world.finish(program, ids, answer)
            talk.messages.append(message)
        else:
            self.world.abort(program)
            self.send(talk)

    def goes_on(self, talk: Conversation, how: str) -> None:
        branch = replace(talk, messages=list(talk.messages), program=None)
        if how == "side":
            self.aside(talk, branch)
        elif how == "copy":  # another key repeats the whole conversation, and goes on with it
            branch.key = f"key {next(NUMBERS)}"
            self.says(branch)
            self.begins(branch, steady=False)
        elif how == "sample":  # the same first prompt again
            branch.messages = branch.messages[:1]
            self.begins(branch, steady=False)
        else:
            if how == "compact":
                talk.messages[:-1] = [Message(0, words((self.seed, next(NUMBERS)), 100))]
                talk.program = None
            self.says(talk)
            self.send(talk)
            if how == "fork":
                self.says(branch)
                self.begins(branch, steady=False)

    def aside(self, talk: Conversation, side: Conversation) -> None:
        """Ask for a title or the like: with the whole history, or without its last answer."""
        whole = self.drawn.random() < 0.5
        if not whole:
            side.messages.pop()
        self.says(side)
        ids, self.sender = side.ids(), talk
        program = self.world.send(ids, talk.key)
        assert self.owner.setdefault(program, talk) is talk, "a side request joined another conversation"
        assert (program is talk.program) == whole
        self.world.finish(program, ids, side.answer((self.seed, next(NUMBERS)), 9, tool=False)[1])

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
@example(99)  # two side requests, one of which is split off, then the next turn
@example(152)  # a side request without the last answer
@example(292)  # a fork, and another conversation with a first question of one token
@example(494)  # a fork, and an idle side request that extends the same prompt
def test_no_request_joins_another_conversation(seed: int) -> None:
    """Turns, forks, retries, parallel samples, side requests, compactions, and copies under another key, of
    conversations with one system prompt: a request is at its own conversation's program or at a new one, and a next
    turn always at its own."""
    crowd = Crowd(seed)
    for _ in range(crowd.drawn.randrange(5, 60)):
        crowd.act()


@pytest.mark.parametrize("is_family", [True, False])
def test_an_id_of_several_conversations_counts_where_the_prompt_continues(is_family: bool) -> None:
    """Claude Code: the main agent sends the session's id, a sub-agent an id of its own and the session's as parent."""
    table, (main, other) = Driver("working-set").table, (prompt_of(words(name, 200)) for name in ("main", "other"))
    first = table.identity.recognise("r1", 0.0, main, session_id="session", is_family=is_family)
    second = table.identity.recognise("r2", 0.0, other, session_id="session", is_family=is_family)
    assert (first.name, second.name) == ("session" if is_family else "r1", "r2")
    assert (second.root is first, first.root is first) == (is_family, True)
    assert (table.identity.program_for("agent-7", 0.0, "session", other).root is first) == is_family
    table.identity.programs.prompts.failed(first)  # now the same prompt is a retry, but not in another session
    again = [
        table.identity.recognise("r3", 0.0, main, session_id=session_id) for session_id in ("another", None, "session")
    ]
    assert [each is first for each in again] == [False, False, True]


def test_short_prompts_under_one_id_of_several_conversations_are_not_joined() -> None:
    table, short = Driver("working-set").table, [prompt_of(words(text, 12)) for text in ("hi", "who")]
    found = [table.identity.recognise(f"r{n}", 0.0, prompt, None, "company") for n, prompt in enumerate(short)]
    assert found[0] is not found[1]
