"""The one reader of token counts: of servers' answers and of imported files, whatever an API, an agent or a tracing
tool calls them.

A count is what a field says, or a sum of what fields say. The total only decides between sums: whether the prompt's
count contains what a cache held, and the output's count the reasoning. Without one that fits, the names decide. What
the total has beyond all fields is unknown.

A name is compared without case, ``_`` and ``-``; one in an object ``..._details`` stands for itself. A new spelling is
a word in ``_NAMES``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

Count = Callable[[Mapping[str, Any], str], int | None]
"""Reads a field as a whole number of at least 0; None: it is missing, or no such number."""
_NAMES = {
    "prompt": """prompttokens inputtokens prompttokencount inputtokencount prompt input tokensin inputother
        promptevalcount numprompttokens numinputtokens inputtokens.total""",
    "whole": "totalinputtokens",
    "output": """completiontokens outputtokens candidatestokencount outputtokencount completiontokencount completion
        output tokensout evalcount numcompletiontokens numoutputtokens generatedtokens outputtokens.total""",
    "cached": """cachedtokens cachedinputtokens cachedcontenttokencount cached promptcachehittokens cachereadtokens
        inputtokens.cacheread cacheread.inputtokens cachereadinputtokens cachereads cacheread cache.read inputcacheread
        inputtokenscacheread inputcachedtokens cachedprompttokens""",
    "written": """cachecreationinputtokens cachewriteinputtokens cachewrites cachewrite cache.write inputcachecreation
        inputtokenscachewrite cachewritetokens cachecreationtokens cachecreation.inputtokens cachewrite.inputtokens
        inputtokens.cachewrite inputcachewrite""",
    "reasoning": """reasoningtokens reasoningoutputtokens reasoning.outputtokens outputtokens.reasoning thoughts
        thoughtstokencount reasoning""",
    "more": "tool tooluseprompttokencount",
    "total": "totaltokens totaltokencount total",
}
"""Names of each count, the surer first. ``whole`` is a prompt with all in it, ``more`` stands beside a prompt."""
_FACTS = {name: (fact, rank) for fact, names in _NAMES.items() for rank, name in enumerate(names.split())}
_APART = """cachereadinputtokens cachereads cacheread cache.read inputcacheread inputtokenscacheread inputcachedtokens
    thoughts thoughtstokencount reasoning"""
_BESIDE = frozenset(_APART.split())
"""Names of counts that stand beside the prompt's or the output's, unless they are in ``..._details``."""
_MODALITY = re.compile(r"(?:.*\.)?(?:text|image|audio|video)\.")
"""Objects with the part of a count that is of one kind of content."""
MOST = 2**53
"""Larger counts are none: no answer has as many tokens, and records could not be read again."""
_SEPARATORS = re.compile(r"[_\- ]")


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of one request; None: no field says."""

    prompt_tokens: int | None = None
    """With what was cached."""
    output_tokens: int | None = None
    """With reasoning."""
    cached_tokens: int | None = None
    reasoning_tokens: int = 0
    unnamed_tokens: int = 0
    """The part of ``total_tokens`` that no field names, such as hidden thoughts."""
    written_tokens: int = 0
    """Written to the provider's cache."""
    total_tokens: int | None = None
    beside: bool = False
    """The source counts cached tokens beside the prompt's: they were added."""

    @property
    def differs(self) -> bool:
        """Whether the source's total is no sum of its counts."""
        return bool(self.total_tokens and self.prompt_tokens) and (
            self.total_tokens != (self.prompt_tokens or 0) + (self.output_tokens or 0)
        )

    def with_cached_beside(self) -> Usage:
        """Return these counts, read as if cached tokens were beside the prompt's."""
        more = (self.cached_tokens or 0) + self.written_tokens
        return self if self.beside else replace(self, prompt_tokens=(self.prompt_tokens or 0) + more, beside=True)


def count_in(fields: Mapping[str, Any], name: str) -> int | None:
    """Read a count in whatever form: ``5``, ``5.0``, ``"5"``."""
    value = fields.get(name)
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(MOST)):
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST and value == value // 1:
        return int(value)
    return None


def fields_of(item: Any) -> Mapping[str, Any]:
    """Return the fields of a JSON object or of a pydantic object; empty if it is neither.

    ``getattr`` for a missing attribute of a pydantic object takes ten times as long as this.
    """
    if isinstance(item, dict):
        return item
    fields: Mapping[str, Any] = getattr(item, "__dict__", None) or {}
    extra = getattr(item, "__pydantic_extra__", None)
    return {**fields, **extra} if extra else fields


def read_usage(usage: Mapping[str, Any], count: Count = count_in, beside: bool | None = None) -> Usage:
    """Read an object with token counts.

    Args:
        usage: the object, or a part of it: streams of Anthropic's API send it in two.
        count: how a field is read.
        beside: whether cached tokens are beside the prompt's where no total shows it; None: as the names say.
    """
    read: dict[str, tuple[int, int, bool]] = {}
    for fields, key, path in _leaves(usage):
        fact, rank, apart = _fact(path)
        if fact and rank < read.get(fact, (2 * len(_FACTS),))[0] and (number := count(fields, key)) is not None:
            read[fact] = rank, number, apart
    openai = usage.get("prompt_tokens") is not None
    return _summed({fact: number for fact, (_, number, _) in read.items()}, _added(read, openai, beside))


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield the members of an object, each with its object, its name, and its path as paths are compared."""
    for key, each in value.items():
        if each is None or isinstance(each, list | bool):
            continue
        path = above + _short(key)
        if isinstance(each, int | float | str):
            yield value, key, path
        elif inner := fields_of(each):
            yield from _leaves(inner, f"{path}.")


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    return _SEPARATORS.sub("", name).lower()


@lru_cache(maxsize=4096)
def _fact(path: str) -> tuple[str, int, bool]:
    """Return which count stands at a path, how sure its name is, and whether it is beside the prompt's or output's.

    A name below another one, such as ``audio.input_tokens``, is less sure than any that stands alone.
    """
    inside, leaf = "details." in path, path.rpartition(".")[2]
    short = leaf if inside or leaf.endswith("tokens") else path
    fact, rank = _FACTS.get(path) or _FACTS.get(short) or ("", 0)
    if path not in _FACTS and _MODALITY.match(path):
        fact = ""
    below = len(_FACTS) * (path not in _FACTS and path != short and not inside)
    return fact, rank + below, short in _BESIDE and not inside


def _added(read: Mapping[str, tuple[int, int, bool]], openai: bool, beside: bool | None) -> tuple[bool, bool]:
    """Return whether cached tokens, and whether reasoning, are to be added where no total shows it.

    A prompt in OpenAI's name has the cached tokens in it, whatever they are called.
    """
    named = read["cached"][2] if "cached" in read else "written" in read
    return (named and not openai) if beside is None else beside, read.get("reasoning", (0, 0, False))[2]


def _summed(read: Mapping[str, int], added: tuple[bool, bool]) -> Usage:
    """Add up what stands beside the prompt and the output: the sums whose total fits, or else those by the names."""
    output, cached, total = read.get("output"), read.get("cached"), read.get("total")
    written, reasoning = read.get("written", 0), read.get("reasoning", 0)
    other, own = (cached or 0) + written, read.get("prompt")
    if own is None and not (other and added[0]) and "whole" not in read:
        return Usage(None, output, cached, reasoning, 0, written, total)
    base = (own or 0) + read.get("more", 0)
    prompts = [base + other, base] if added[0] else [base, base + other]
    prompts = [read["whole"]] if "whole" in read else [*prompts, base + (cached or 0)]
    answers = [(output or 0) + reasoning, output or 0] if added[1] else [output or 0, (output or 0) + reasoning]
    fitting = [(prompt, answer) for answer in answers for prompt in prompts if prompt + answer == total]
    prompt, answer = fitting[0] if fitting else (prompts[0], answers[0])
    unnamed = 0 if fitting or not total or output is None else max(0, total - prompt - answer)
    said = None if output is None and not answer else answer
    return Usage(prompt, said, cached, reasoning, unnamed, written, total, prompt > base)


def first_count(fields: Mapping[str, Any], *names: str, count: Count = count_in) -> int | None:
    """Return the first of these fields that says a count; None: none does."""
    return next((value for name in names if (value := count(fields, name)) is not None), None)
