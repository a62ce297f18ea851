"""Recognise the program that a request without an id continues: the one whose earlier prompt and answer it repeats.

Prompts are found by the hashes of some of their last full blocks, each of which identifies the whole prefix up to its
end. What the blocks leave open is compared by tokens: the rest of the prompt, and the answer. So neither a common
system prompt nor parallel samples of one prompt are taken for a continuation (docs/server/untagged.md). The next turn
may leave out or rewrite a short tail of the prompt, such as a reminder.

Two other modules ask which conversation a request continues, because each sees and risks something else. A client
(``continuum_client.conversation``) sees messages, before a template makes tokens of them, and gives the conversation an
id, which counts here. The API server (``vllm_plugin.ranks``) chooses one of several engines for a prompt's tokens; it
sees no answers and no blocks, and an error costs it one recomputation. Here an error would hold the KV of the wrong
program, so parallel samples, forks and side requests are told apart by the answers.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from continuum_server.policy.facts import ProgramState

MOST_BLOCKS = 8192
"""Number of blocks of a prompt that are looked up, from its end. A turn that adds more begins a new program."""
STRIDE = 4
"""Only every ``STRIDE``-th block is a key, so that few are looked up."""
MOST_MARKS = 64
"""Number of earlier prompts with which a prompt is compared, and that are kept for one block."""
PROMPTS = 4
"""Number of prompts remembered per program."""
ANSWER, PROBE = 32, 4
"""An answer is represented by its last ``ANSWER`` tokens, cut into probes of ``PROBE`` tokens."""
SOUGHT = 2048
"""Number of tokens after a prompt in which the end of its answer is sought. The blocks show that a longer answer is
repeated in full."""
MOST_SOUGHT = 3072
"""Number of tokens of a prompt in which all answers are sought."""
SHORT_TAIL = 512
"""Number of tokens at the end of a prompt that the next one may leave out or rewrite, at most half of the prompt."""
OPENING = 3
"""Number of tokens at the end of a prompt that open an answer. Where the next prompt has them, an answer follows."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The parts of a prompt that distinguish conversations."""

    tokens: int = 0
    blocks: Sequence[Hashable] | None = None
    """A hash for each full block, which identifies the prefix up to its end. None: unknown; continues any program."""
    ids: Sequence[int] | None = None
    """The tokens; None: unknown."""


@dataclass(slots=True, eq=False)
class Mark:
    """A program's earlier prompt, and what is known of its answer."""

    program: ProgramState
    tokens: int
    rest_from: int
    """Number of leading tokens that every key covers."""
    rest: array[int]
    """The prompt's other tokens."""
    keys: list[Hashable] = field(default_factory=list)
    """Hashes of blocks at the end of the prompt and of the context. The mark is found by them."""
    answered: int = 0
    """Number of tokens of the answer."""
    probes: Sequence[int] = ()
    """Hashes of each ``probe`` tokens at the end of the answer, without the token that ended it."""
    probe: int = PROBE
    """``PROBE``, or the length of a shorter answer."""
    failed: bool = False
    """The request was aborted, so that the same prompt again is a retry."""
    name: str = ""
    """The request's id."""


@dataclass(frozen=True, slots=True)
class Match:
    """The earlier program that a prompt belongs to."""

    mark: Mark
    """The program's prompt that it extends."""
    continues: bool
    """True: the request is the program's next turn. False: it forks from it, and is a new program."""
    bare: bool = False
    """The prompt extends the program's prompt, but not by its answer."""
    branches: bool = False
    """The program went on from this prompt in another way. Those turns are of another program."""

    @property
    def program(self) -> ProgramState:
        return self.mark.program


@dataclass(slots=True, eq=False)
class _History:
    scope: Hashable
    marks: deque[Mark] = field(default_factory=deque)
    """The latest last."""
    bare: bool = False
    """The program's prompts do not repeat answers."""


class Recogniser:
    """The prompts of programs, in scopes that never match each other.

    Args:
        block_size: number of tokens that one hash stands for.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._scopes: dict[Hashable, dict[Hashable, list[Mark]]] = {}
        self._histories: dict[ProgramState, _History] = {}

    # ---------------------------------------------------------------------------------- the search

    def find(self, scope: Hashable, prompt: Prompt) -> Match | None:
        """Return the program that a prompt belongs to; None: it begins a new one, unrelated to others."""
        ids = prompt.ids
        if not prompt.blocks or ids is None:
            return None
        after, sampled, bare = _After(ids), False, None
        answered: Mark | None
        for end, marks in self._candidates(scope, prompt.blocks):
            if len(marks) == 1 and end >= marks[0].tokens + PROBE:  # the key covers a part of the answer
                left, answered = marks[0].tokens, marks[0]
            else:
                places = [(at, mark) for mark in marks if (at := self._end(after, mark)) is not None]
                equal = [mark for at, mark in places if at == len(ids) == mark.tokens]
                for mark in equal:  # a retry, or another sample of the same prompt
                    if mark.failed and self._waits(mark):
                        return Match(mark, continues=True)
                    sampled = True
                longer = [(at, mark) for at, mark in places if len(ids) > at and mark not in equal]
                left, answered = self._answered(after, longer)
                found = self._bare(after, longer)
                bare = max(filter(None, (bare, found)), key=lambda match: match[0], default=None)
            if answered is not None:
                if bare is not None and bare[0] > left:  # a later turn is repeated too, but not its answer
                    break
                match = self._decide(answered)
                if match.continues or not sampled:
                    return match
        return bare[1] if bare is not None and (bare[1].continues or not sampled) else None

    def _end(self, after: _After, mark: Mark) -> int | None:
        """Return up to where the prompt repeats a mark's prompt; None: not enough of it."""
        same = after.same(mark)
        short = mark.tokens - same <= min(SHORT_TAIL, mark.tokens // 2) and self._waits(mark)
        return same if same >= mark.rest_from and (short or after.extends(mark)) else None

    def _answered(self, after: _After, places: Sequence[tuple[int, Mark]]) -> tuple[int, Mark | None]:
        """Return the mark whose answer the prompt repeats behind the mark's prompt, and up to where it repeats the
        mark's prompt; None: there is none."""
        span = min(SOUGHT, ANSWER + max((mark.answered for _, mark in places), default=0))
        repeated = ((after.repeated(mark, at, span), at, mark) for at, mark in places)
        return max((answer for answer in repeated if answer[0]), key=self._preference, default=(0, 0, None))[1:]

    def _bare(self, after: _After, places: Sequence[tuple[int, Mark]]) -> tuple[int, Match] | None:
        """Return up to where the prompt repeats a mark's prompt, but not the answer, and the match; None: with none.

        If another answer follows than that of an idle program's latest prompt, the agent wrote it anew, or played a
        recording. It is the next turn, unless several programs are so. Otherwise it forks from what it extends.
        """
        opened = [(at, mark) for at, mark in places if self._waits(mark) and after.opens_answer(mark, at)]
        whole = [(at, mark) for at, mark in places if after.extends(mark)]
        if len(opened) == 1 and opened[0][0] >= max((at for at, _ in whole), default=0):
            at, mark = opened[0]
            return at, Match(mark, continues=True, bare=True)
        if not whole:
            return None
        at, mark = max(reversed(whole), key=lambda place: place[0])
        return at, Match(mark, self._continues_bare(mark), bare=True)

    def _candidates(self, scope: Hashable, blocks: Sequence[Hashable]) -> Iterator[tuple[int, list[Mark]]]:
        """Yield the earlier prompts that the blocks may extend, and the number of tokens that both certainly have in
        common, the largest first."""
        index = self._scopes.get(scope)
        if index is None:
            return
        seen: set[int] = set()
        last = _key_at(len(blocks) - 1)
        keys = range(last, max(-1, last - MOST_BLOCKS), -STRIDE)
        for key, marks in zip(keys, map(index.get, map(blocks.__getitem__, keys)), strict=True):
            if marks is None:
                continue
            new = [mark for mark in marks if id(mark) not in seen]
            if new:
                yield (key + 1) * self._block_size, new
            seen.update(map(id, new))
            if len(seen) > MOST_MARKS:
                return

    def _preference(self, answer: tuple[int, int, Mark]) -> tuple[int, int, bool, bool]:
        """Return the order of preference of marks: those of which the prompt repeats most, then idle programs."""
        repeated, at, mark = answer
        return at, repeated, mark.program.turn is None, self._waits(mark)

    def _decide(self, mark: Mark) -> Match:
        """Decide whether a prompt that repeats a mark's prompt and answer is the program's next turn, or a fork.

        It is a fork while a request of the program is in the engine. Otherwise it is the next turn. If the program has
        gone on from there in another way, that was a fork or a side request, which looked like the next turn.
        """
        latest = self._histories[mark.program].marks[-1] is mark
        return Match(mark, mark.program.turn is None, branches=not latest)

    def _continues_bare(self, mark: Mark) -> bool:
        """Whether a prompt that extends a mark's prompt, but not by the answer, is the program's next turn.

        A side request looks the same, so at first it is not. But if such a fork is extended in the same way, its agent
        never repeats answers. A prompt that failed has no answer.
        """
        return self._waits(mark) and (mark.failed or self._histories[mark.program].bare)

    def _waits(self, mark: Mark) -> bool:
        """Whether the program is idle, and the mark is of its latest turn."""
        return mark.program.turn is None and self._histories[mark.program].marks[-1] is mark

    # -------------------------------------------------------------------------------- what happened

    def arrived(
        self, scope: Hashable, program: ProgramState, prompt: Prompt, match: Match | None = None, name: str = ""
    ) -> None:
        """Remember the prompt of a program's turn, for which ``find`` returned ``match``.

        Args:
            name: the request's id.
        """
        if not prompt.blocks or prompt.ids is None:
            return
        history = self._histories.get(program)
        if history is None:
            history = self._histories[program] = _History(scope, bare=match is not None and match.bare)
        elif history.marks:
            self._shorten(scope, history.marks[-1])
        far, near = self._key_places(len(prompt.blocks))
        places = [*far, *near]
        start = (places[0] + 1) * self._block_size
        mark = Mark(program, prompt.tokens, start, array("q", prompt.ids[start:]), name=name)
        history.marks.append(mark)
        self._add(scope, mark, [prompt.blocks[at] for at in places])
        if len(history.marks) > PROMPTS:
            self._remove(scope, history.marks.popleft())

    def _key_places(self, blocks: int) -> tuple[list[int], list[int]]:
        """Return the blocks of a prompt that are its keys: some before a short tail, and the last ones."""
        near = dict.fromkeys(_key_at(blocks - back) for back in (2, 1))
        backs = SHORT_TAIL // self._block_size + STRIDE, 3 * STRIDE
        far = dict.fromkeys(_key_at(max(blocks - back, blocks // 2)) for back in backs)
        return [place for place in far if place < min(near)], list(near)

    def _shorten(self, scope: Hashable, mark: Mark) -> None:
        """Forget the keys before a short tail, because the prompt is no longer its program's latest."""
        far, near = self._key_places(mark.tokens // self._block_size)
        start = (near[0] + 1) * self._block_size
        if mark.rest_from == start:  # none, or forgotten before its later turns were split off
            return
        mark.rest, mark.rest_from = mark.rest[start - mark.rest_from :], start
        self._drop(scope, mark, mark.keys[: len(far)])
        del mark.keys[: len(far)]

    def later(self, mark: Mark) -> list[Mark]:
        """Return the prompts that a program sent since the mark."""
        marks = list(self._histories[mark.program].marks)
        return marks[marks.index(mark) + 1 :]

    def split(self, mark: Mark, branch: ProgramState) -> None:
        """Let the prompts that a program sent since the mark be those of another program."""
        history, later = self._histories[mark.program], self.later(mark)
        for mark in later:
            history.marks.remove(mark)
            mark.program = branch
        self._histories[branch] = _History(history.scope, deque(later), history.bare)

    def in_scope(self, scope: Hashable) -> list[ProgramState]:
        """Return the programs whose prompts are in this scope, if there are few."""
        index = self._scopes.get(scope, {})
        found = dict.fromkeys(mark.program for marks in index.values() for mark in marks) if len(index) < 512 else {}
        return list(found)

    def finished(self, program: ProgramState, answer: Sequence[int], blocks: Sequence[Hashable]) -> None:
        """Remember the answer to the program's latest prompt.

        Args:
            answer: its tokens, with the token that ended it.
            blocks: hashes of the full blocks of prompt and answer.
        """
        history = self._histories.get(program)
        if history is None:
            return
        mark = history.marks[-1]
        mark.answered, end = len(answer), answer[-ANSWER - 1 : -1]
        mark.probe = min(PROBE, len(end))
        if end:
            mark.probes = array("q", _probes(end[len(end) % mark.probe :], mark.probe, mark.probe))
        last, of_prompt = _key_at(len(blocks) - 1), mark.tokens // self._block_size
        self._add(history.scope, mark, [blocks[at] for at in (last - STRIDE, last) if at >= of_prompt])

    def failed(self, program: ProgramState) -> None:
        """Note that the program's latest request was aborted or failed."""
        history = self._histories.get(program)
        if history is not None:
            history.marks[-1].failed = True

    def forget(self, program: ProgramState) -> None:
        history = self._histories.pop(program, None)
        if history is not None:
            for mark in history.marks:
                self._remove(history.scope, mark)

    def _add(self, scope: Hashable, mark: Mark, keys: Sequence[Hashable]) -> None:
        index = self._scopes.setdefault(scope, {})
        for key in keys:
            marks = index.setdefault(key, [])
            marks.append(mark)
            mark.keys.append(key)
            if len(marks) > MOST_MARKS:
                del marks[0]

    def _remove(self, scope: Hashable, mark: Mark) -> None:
        self._drop(scope, mark, mark.keys)

    def _drop(self, scope: Hashable, mark: Mark, keys: Sequence[Hashable]) -> None:
        index = self._scopes[scope]
        for key in keys:
            left = [other for other in index.get(key, ()) if other is not mark]
            if left:
                index[key] = left
            else:
                index.pop(key, None)
        if not index:
            del self._scopes[scope]


def _key_at(block: int) -> int:
    """Return the last block up to this one that is a key."""
    return max(0, block) // STRIDE * STRIDE


class _After:
    """The tokens of a prompt at the ends of earlier prompts, and after them, where their answers are sought."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._left = ids, MOST_SOUGHT
        self._rests: dict[tuple[int, int], array[int]] = {}
        self._places: dict[tuple[int, int, int], set[int]] = {}

    def same(self, mark: Mark) -> int:
        """Return how many leading tokens of a mark's prompt the prompt repeats, where the first key covers them."""
        rest, there = mark.rest, self._rest(mark)
        if rest == there:
            return mark.tokens
        pairs = enumerate(zip(rest, there, strict=False))
        return mark.rest_from + next((number for number, (one, other) in pairs if one != other), len(there))

    def extends(self, mark: Mark) -> bool:
        """Whether the prompt repeats a mark's prompt up to where the answer is opened.

        Templates may open an answer otherwise than they repeat it, but each prompt ends as it is opened. So what
        differs must be at the end of both.
        """
        if len(self._ids) < mark.tokens:
            return False
        left = mark.tokens - self.same(mark)
        return not left or mark.rest[-left:] == array("q", self._ids[-left:])

    def opens_answer(self, mark: Mark, at: int) -> bool:
        """Whether the prompt opens an answer where it leaves a mark's prompt, as that one does at its end.

        What both have in common may cover a part of the opening.
        """
        opening, ids = mark.rest[-OPENING:], self._ids
        if len(opening) < OPENING:
            return False
        lengths = range(0 if at == mark.tokens else 1, 2 * OPENING)
        ends = ((at + length, max(length, OPENING)) for length in lengths if at + length < len(ids) - OPENING)
        return any(mark.rest[-length:] == array("q", ids[end - length : end]) for end, length in ends)

    def repeated(self, mark: Mark, at: int, span: int) -> int:
        """Return how many probes of a mark's answer are in the ``span`` tokens after the mark's prompt, which the
        prompt repeats up to ``at``.

        Templates write some answers otherwise than the model did, and drop reasoning. A part of the answer is enough.
        """
        return sum(map(self._after(at, span, mark.probe).__contains__, mark.probes))

    def _rest(self, mark: Mark) -> array[int]:
        ends = mark.rest_from, mark.tokens
        there = self._rests.get(ends)
        if there is None:
            there = self._rests[ends] = array("q", self._ids[mark.rest_from : mark.tokens])
        return there

    def _after(self, tokens: int, span: int, length: int) -> set[int]:
        """Return the probes in the ``span`` tokens after the first ``tokens`` ones, and a few before. What has been
        read is bounded, and the places after the longest earlier prompts are read first."""
        probes = self._places.get((tokens, span, length))
        if probes is None:
            start = max(0, tokens - ANSWER)
            part = self._ids[start : min(tokens + span, start + self._left)]
            self._left -= len(part)
            probes = self._places[tokens, span, length] = set(_probes(part, length))
        return probes


def _probes(tokens: Sequence[int], length: int, step: int = 1) -> Iterator[int]:
    """Return a hash of each ``length`` consecutive tokens that begin at every ``step``-th token."""
    return map(hash, zip(*(tokens[shift::step] for shift in range(length)), strict=False))
