"""Recognise the program that a request without an id continues: the one whose earlier prompt and answer it repeats.

Prompts are found by the hashes of some of their last full blocks, each of which identifies the whole prefix up to its
end. What the blocks leave open is compared by tokens: the rest of the prompt, and the answer. So neither a common
system prompt nor parallel samples of one prompt are taken for a continuation (docs/server/untagged.md).

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
from itertools import takewhile

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
    tool: bool = False
    """The answer calls a tool."""
    after: int = 0
    """``tokens`` of the earlier prompt of the program that it extends."""


@dataclass(frozen=True, slots=True)
class Match:
    """The earlier program that a prompt belongs to."""

    mark: Mark
    """The program's prompt that it extends."""
    continues: bool
    """True: the request is the program's next turn. False: it forks from it, and is a new program."""
    bare: bool = False
    """The prompt extends the program's prompt, but not by its answer."""

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
        ids, fork = prompt.ids, None
        if not prompt.blocks or ids is None:
            return None
        after, sampled = _After(ids), False
        for end, marks in self._candidates(scope, prompt.blocks):
            if len(marks) == 1 and end >= marks[0].tokens + PROBE:  # the key covers a part of the answer
                extended = marks
                match: Match | None = self._decide(marks[0])
            else:
                extended = [mark for mark in marks if after.extends(mark)]
                for mark in extended:
                    if len(ids) == mark.tokens:  # a retry, or another sample of the same prompt
                        if mark.failed and self._waits(mark):
                            return Match(mark, continues=True)
                        sampled = True
                span = min(SOUGHT, ANSWER + max((mark.answered for mark in extended), default=0))
                repeated = ((after.repeated(mark, span), mark) for mark in extended if len(ids) > mark.tokens)
                best = max((pair for pair in repeated if pair[0]), key=self._preference, default=(0, None))[1]
                match = None if best is None else self._decide(best)
            if match is not None and (match.continues or not sampled):
                return match
            fork = fork or (extended[-1] if extended else None)
        return None if sampled or fork is None else Match(fork, self._continues_bare(fork), bare=True)

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

    def _preference(self, pair: tuple[int, Mark]) -> tuple[int, int, bool, bool]:
        """Return the order of preference of marks: those of which the prompt repeats most, then idle programs."""
        repeated, mark = pair
        return mark.tokens, repeated, mark.program.turn is None, self._waits(mark)

    def _decide(self, mark: Mark) -> Match:
        """Decide whether a prompt that repeats a mark's prompt and answer is the program's next turn, or a fork.

        A program that went on since then is continued only if all that came since extends the same answer and calls no
        tool: side requests, such as for a title.
        """
        later = takewhile(lambda each: each is not mark, reversed(self._histories[mark.program].marks))
        went_on = any(each.tool or each.after != mark.tokens for each in later)
        return Match(mark, mark.program.turn is None and not went_on)

    def _continues_bare(self, mark: Mark) -> bool:
        """Whether a prompt that extends a mark's prompt, but not by the answer, is the program's next turn.

        A side request looks the same, so at first it is not. But if such a fork is extended in the same way, its agent
        never repeats answers.
        """
        return self._histories[mark.program].bare and self._waits(mark)

    def _waits(self, mark: Mark) -> bool:
        """Whether the program is idle, and the mark is of its latest turn."""
        return mark.program.turn is None and self._histories[mark.program].marks[-1] is mark

    # -------------------------------------------------------------------------------- what happened

    def arrived(self, scope: Hashable, program: ProgramState, prompt: Prompt, match: Match | None = None) -> None:
        """Remember the prompt of a program's turn, for which ``find`` returned ``match``."""
        if not prompt.blocks or prompt.ids is None:
            return
        history = self._histories.get(program)
        if history is None:
            history = self._histories[program] = _History(scope, bare=match is not None and match.bare)
        first, last = (_key_at(len(prompt.blocks) - back) for back in (2, 1))
        start = (first + 1) * self._block_size
        after = 0 if match is None else match.mark.tokens
        mark = Mark(program, prompt.tokens, start, array("q", prompt.ids[start:]), after=after)
        history.marks.append(mark)
        self._add(scope, mark, prompt.blocks[first : last + 1 : STRIDE])
        if len(history.marks) > PROMPTS:
            self._remove(scope, history.marks.popleft())

    def finished(self, program: ProgramState, answer: Sequence[int], blocks: Sequence[Hashable], tool: bool) -> None:
        """Remember the answer to the program's latest prompt.

        Args:
            answer: its tokens, with the token that ended it.
            blocks: hashes of the full blocks of prompt and answer.
            tool: whether it calls a tool.
        """
        history = self._histories.get(program)
        if history is None:
            return
        mark = history.marks[-1]
        mark.tool = tool
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
        index = self._scopes[scope]
        for key in mark.keys:
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

    def extends(self, mark: Mark) -> bool:
        """Whether the prompt repeats a mark's prompt up to where the answer is opened.

        Templates may open an answer otherwise than they repeat it, but each prompt ends as it is opened. So what
        differs must be at the end of both.
        """
        ids, rest, ends = self._ids, mark.rest, (mark.rest_from, mark.tokens)
        there = self._rests.get(ends)
        if there is None:
            there = self._rests[ends] = array("q", ids[mark.rest_from : mark.tokens])
        if len(ids) < mark.tokens or rest == there:
            return len(ids) >= mark.tokens
        same = next(number for number, (one, other) in enumerate(zip(rest, there, strict=True)) if one != other)
        return rest[same:] == array("q", ids[len(ids) - len(rest) + same :])

    def repeated(self, mark: Mark, span: int) -> int:
        """Return how many probes of a mark's answer are in the ``span`` tokens after the mark's prompt.

        Templates write some answers otherwise than the model did, and drop reasoning. A part of the answer is enough.
        """
        return sum(map(self._after(mark.tokens, span, mark.probe).__contains__, mark.probes))

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
