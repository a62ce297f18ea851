"""Token counts in every form: answers and importers read the same."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_traces.answers import Answer
from continuum_traces.importers.usage import usage_of

INPUT = {"input_tokens": 1370, "output_tokens": 9}
READ, WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


def chat(prompt: int, output: int, total: int | None = None, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total} | more


def thought(tokens: int) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (chat(100, 5, 105), (100, 5, None, 0)),
        (chat(100, 5, 105, prompt_tokens_details={"cached_tokens": 96}), (100, 5, 96, 0)),
        (chat(100, 5, 105, **{READ: 64, WRITTEN: 10}), (100, 5, 64, 0)),
        # the total contains the cache: so does the prompt
        (chat(70, 9, 1079, **{READ: 1000, WRITTEN: 0}), (1070, 9, 1000, 0)),
        (chat(70, 9, 1379, **{READ: 1000, WRITTEN: 300}), (1370, 9, 1000, 0)),
        (chat(70, 9, 379, **{WRITTEN: 300}), (370, 9, None, 0)),
        (chat(70, 9, 1079, prompt_tokens_details={"cached_tokens": 1000}), (1070, 9, 1000, 0)),
        # the total contains the reasoning that the output lacks
        (chat(100, 5, 112, **thought(7)), (100, 12, None, 7)),
        (chat(100, 12, 112, **thought(7)), (100, 12, None, 7)),
        (chat(70, 5, 1082, **{READ: 1000}, **thought(7)), (1070, 12, 1000, 7)),
        # no field names what the total has more, or less
        (chat(100, 5, 112), (100, 5, None, 0)),
        (chat(100, 5, 111, **thought(7)), (100, 5, None, 7)),
        (chat(100, 5, 104), (100, 5, None, 0)),
        # Anthropic's, beside the cache or with it, and OpenAI's responses
        ({"input_tokens": 70, "output_tokens": 9, READ: 1000, WRITTEN: 300}, (1370, 9, 1000, 0)),
        (
            {"input_tokens": 1370, "output_tokens": 9, READ: 1000, WRITTEN: 300, "total_tokens": 1379},
            (1370, 9, 1000, 0),
        ),
        ({"input_tokens": 70, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 64}}, (70, 9, 64, 0)),
        ({"output_tokens": 9}, (None, 9, None, 0)),
    ],
)
def test_a_count_is_what_fields_say(usage: dict[str, Any], counts: tuple[Any, ...]) -> None:
    answer = Answer()
    answer.take({"usage": usage})
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens, answer.reasoning_tokens) == counts
    read = usage_of("file", usage)
    assert (read.prompt_tokens or None, read.output_tokens, read.cached_tokens, read.reasoning_tokens) == counts


@pytest.mark.parametrize(("total", "unnamed"), [(104, 0), (105, 0), (106, 1)])
def test_what_only_the_total_counts_may_belong_to_the_length(total: int, unnamed: int) -> None:
    answer = Answer()
    answer.take({"usage": chat(100, 5, total)})
    assert answer.unnamed_tokens == unnamed
