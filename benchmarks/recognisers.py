"""Prints how well three parts of Continuum recognise conversations without an id, in the same traffic.

    python benchmarks/recognisers.py [--plays 50]

``messages``  ``continuum_client.conversation`` compares the messages of requests. Clients and the proxy use it.
``engine``    ``policy.recognise`` compares the tokens of prompts and answers. The engine uses it.
``ranks``     ``vllm_plugin.ranks`` compares the tokens of prompts. The API server of several engines uses it.

The conversations are synthetic. A simple template turns their messages into tokens. For each kind of traffic two
numbers are printed. The first is the share of next turns that are assigned to their own conversation. The second is the
share of all requests that are assigned to another conversation when the traffic has ended. The engine may correct
itself before that.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from commands import markdown
from continuum_server.policy.facts import ProgramState
from continuum_server.policy.recognise import Prompt, Recogniser
from continuum_server.vllm_plugin.ranks import UntaggedPrompts

from continuum_client.conversation import Conversation, Conversations, hashes_in

BLOCK = 16
START, END, ASSISTANT = 1, 2, 3
"""Tokens of the template."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    talk: str
    """The conversation's name, the truth."""
    messages: tuple[Message, ...]
    answer: Message


Rounds = Iterator[list[Request]]
"""Requests that are sent together; the next ones are sent when these have ended."""


class Recognises(Protocol):
    """One of the three ways."""

    split: tuple[Hashable, Hashable, int] | None
    """The last request showed that so many latest turns of this program are of that new one; None: it did not."""

    def send(self, request: Request) -> Hashable:
        """Return the program of a request."""

    def ended(self, request: Request, program: Hashable) -> None: ...


class ByMessages:
    split = None

    def __init__(self) -> None:
        self._conversations, self._sent = Conversations(lambda: object()), dict[int, Conversation]()  # type: ignore[arg-type,return-value]

    def send(self, request: Request) -> Hashable:
        found = self._conversations.find("/chat/completions", {"messages": list(request.messages)})
        assert found is not None
        self._sent[id(request)] = found
        return found

    def ended(self, request: Request, program: Hashable) -> None:
        self._sent.pop(id(request)).answer = frozenset(hashes_in([request.answer["content"]]))


class ByTokens:
    def __init__(self) -> None:
        self._recogniser, self._number = Recogniser(BLOCK), 0
        self.split: tuple[Hashable, Hashable, int] | None = None

    def send(self, request: Request) -> Hashable:
        prompt, self._number = _prompt(_ids(request.messages)), self._number + 1
        found, self.split = self._recogniser.find("", prompt), None
        program = ProgramState(str(self._number), 0.0, self._number, family=found and found.program)
        if found is not None and found.continues:
            if found.branches:
                self.split = found.program, program, len(self._recogniser.later(found.mark))
                self._recogniser.split(found.mark, program)
            program = found.program
        self._recogniser.arrived("", program, prompt, found)
        program.turn = request  # type: ignore[assignment]
        return program

    def ended(self, request: Request, program: Hashable) -> None:
        assert isinstance(program, ProgramState)
        program.turn, ids = None, _ids(request.messages)
        answer = [*_words(request.answer.get("reasoning", "")), *_words(request.answer["content"]), END]
        self._recogniser.finished(program, answer, _prompt([*ids, *answer]).blocks or ())


class ByPrompts:
    split = None

    def __init__(self) -> None:
        self._prompts = UntaggedPrompts()

    def send(self, request: Request) -> Hashable:
        return self._prompts.continued(_ids(request.messages))

    def ended(self, request: Request, program: Hashable) -> None:
        self._prompts.busy.discard(str(program))


def _words(text: str) -> list[int]:
    return [100 + hash(word) % 50_000 for word in text.split()]


def _ids(messages: Sequence[Message]) -> list[int]:
    said = (token for each in messages for token in (START, *_words(each["role"]), *_words(each["content"]), END))
    return [*said, START, ASSISTANT]


def _prompt(ids: Sequence[int]) -> Prompt:
    hashes, last = [], 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        last = hash((last, *ids[end - BLOCK : end]))
        hashes.append(last)
    return Prompt(len(ids), hashes, ids)


class Talk:
    """A conversation that an agent keeps."""

    def __init__(self, name: str, draw: random.Random, history: Sequence[Message] = ()) -> None:
        self.name, self._draw = name, draw
        self.messages = list(history or [self._said("system", 300)])

    def _said(self, role: str, words: int) -> Message:
        return {"role": role, "content": " ".join(str(self._draw.randrange(10**6)) for _ in range(words))}

    def says(self, words: int = 60) -> Talk:
        self.messages.append(self._said("user", words))
        return self

    def asks(self, *tail: Message) -> Request:
        return Request(self.name, (*self.messages, *tail), self._said("assistant", 40))

    def reminder(self) -> Message:
        return self._said("user", 20)

    def hears(self, request: Request) -> None:
        self.messages.append(request.answer)

    def turn(self) -> Iterator[list[Request]]:
        request = self.says().asks()
        yield [request]
        self.hears(request)

    def branch(self, name: str) -> Talk:
        return Talk(name, self._draw, self.messages)


def agent(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for _ in range(6):
        yield from talk.turn()


def crowd(draw: random.Random) -> Rounds:
    first = Talk("agent 0", draw)
    talks = [first, *(first.branch(f"agent {number}") for number in range(1, 6))]
    for _ in range(4):
        asked = [(talk, talk.says().asks()) for talk in talks]
        yield [request for _, request in asked]
        for talk, request in asked:
            talk.hears(request)


def samples(draw: random.Random, equal: bool) -> Rounds:
    first = Talk("sample 0", draw).says()
    talks = [first, *(first.branch(f"sample {number}") for number in range(1, 6))]
    for _ in range(4):
        asked = [talk.asks() for talk in talks]
        if equal:
            asked = [Request(each.talk, each.messages, asked[0].answer) for each in asked]
        yield asked
        said = talks[0].reminder()
        for talk, request in zip(talks, asked, strict=True):
            talk.hears(request)
            talk.messages.append(said if equal else talk.reminder())


def fork(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    yield from talk.turn()
    branch = talk.branch("fork")
    for _ in range(3):
        yield from talk.turn()
        yield from branch.turn()


def sub_agents(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for _ in range(2):
        yield from talk.turn()
    forks = [talk.branch(f"fork {number}") for number in range(3)]
    for _ in range(2):
        asked = [(each, each.says().asks()) for each in forks]
        yield [request for _, request in asked]
        for each, request in asked:
            each.hears(request)
    for _ in range(2):
        yield from talk.turn()


def side(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for number in range(4):
        yield from talk.turn()
        yield [talk.branch(f"title {number}").says(8).asks()]


def reminders(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for _ in range(6):
        request = talk.says().asks(talk.reminder())
        yield [request]
        talk.hears(request)


def without_answers(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for _ in range(6):
        yield [talk.says().asks()]


def compaction(draw: random.Random) -> Rounds:
    talk = Talk("agent", draw)
    for number in range(6):
        yield from talk.turn()
        if number == 2:
            talk.messages[1:] = [talk.reminder()]


KINDS: dict[str, Callable[[random.Random], Rounds]] = {
    "an agent": agent,
    "six agents, one system prompt": crowd,
    "six samples of a prompt, other answers": lambda draw: samples(draw, equal=False),
    "six samples of a prompt, equal answers": lambda draw: samples(draw, equal=True),
    "a fork of an idle agent": fork,
    "three forks at once, then the agent": sub_agents,
    "a side request after each turn": side,
    "a reminder at the end of each prompt": reminders,
    "an agent that leaves out its answers": without_answers,
    "a history that is compacted": compaction,
}
WAYS: dict[str, Callable[[], Recognises]] = {"messages": ByMessages, "engine": ByTokens, "ranks": ByPrompts}


class Score:
    """What one way made of the requests, beside the truth."""

    def __init__(self, recogniser: Recognises) -> None:
        self._recogniser = recogniser
        self._turns: dict[Hashable, list[str]] = {}
        """The conversations of each program's turns."""
        self._at: dict[str, Hashable] = {}
        """The program of each conversation's latest turn."""
        self.nexts = self.kept = 0

    def play(self, rounds: Rounds) -> None:
        for sent in rounds:
            for request, program in [(request, self._send(request)) for request in sent]:
                self._recogniser.ended(request, program)

    def _send(self, request: Request) -> Hashable:
        program = self._recogniser.send(request)
        if self._recogniser.split is not None:
            origin, branch, number = self._recogniser.split
            turns = self._turns[origin]
            self._turns[branch], turns[-number:] = turns[-number:], []
            self._at |= dict.fromkeys(self._turns[branch], branch)
        self.nexts += request.talk in self._at
        self.kept += self._at.get(request.talk) == program
        self._at[request.talk] = program
        self._turns.setdefault(program, []).append(request.talk)
        return program

    @property
    def joined(self) -> int:
        """Number of requests that are in a program most of whose turns are another conversation's."""
        return sum(len(turns) - max(Counter(turns).values()) for turns in self._turns.values())

    @property
    def requests(self) -> int:
        return sum(map(len, self._turns.values()))


def scores(kind: Callable[[random.Random], Rounds], way: Callable[[], Recognises], plays: int) -> str:
    """Return the share of next turns at their conversation, and of requests at another one, as text."""
    made = [Score(way()) for _ in range(plays)]
    for seed, score in enumerate(made):
        score.play(kind(random.Random(seed)))
    kept = sum(each.kept for each in made) / sum(each.nexts for each in made)
    joined = sum(each.joined for each in made) / sum(each.requests for each in made)
    return f"{kept:.0%}, {joined:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=int, default=50)
    plays = parser.parse_args().plays
    rows = [[name, *(scores(kind, way, plays) for way in WAYS.values())] for name, kind in KINDS.items()]
    print(markdown(["traffic", *WAYS], rows))  # noqa: T201


if __name__ == "__main__":
    main()
