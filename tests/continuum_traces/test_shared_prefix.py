"""Programs that open with the same text: found where a source has text, counted, put before a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from continuum_traces.importers.shared_prefix import PREFIX_ESTIMATED, with_shared_prefixes
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.stats import trace_stats
from continuum_traces.programs.synth import bundled, put_behind
from continuum_traces.schema import Program, Turn

SYSTEM = "You are an agent. " * 40
"""720 characters: 180 tokens by estimate."""


Opened = tuple[Program, tuple[str, ...]]


def opened(prompt_tokens: int, *messages: str) -> Opened:
    return Program("p", (Turn(prompt_tokens, 10), Turn(5, 10)), "here"), messages


def shared(*given: Opened, assumptions: Assumptions | None = None) -> list[Program]:
    programs, messages = [program for program, _ in given], [messages for _, messages in given]
    return list(with_shared_prefixes(programs, messages, Assumptions() if assumptions is None else assumptions))


OTHER, RULES = "I " * 300, "Follow the rules. " * 20


@pytest.mark.parametrize(
    ("programs", "prefixes"),
    [
        (
            [opened(300, SYSTEM, "task one"), opened(400, SYSTEM, "job two"), opened(90, "No", "task one")],
            [181, 181, 0],
        ),
        ([opened(900, SYSTEM, RULES + "A"), opened(900, SYSTEM, RULES + "B")], [271, 271]),  # as far as they agree
        ([opened(900, SYSTEM + "A" * 99), opened(900, SYSTEM + "B" * 99)], [180, 180]),  # one template
        ([opened(900, SYSTEM), opened(900, SYSTEM, "more")], [180, 180]),  # one prompt begins the other
        ([opened(900, "short A"), opened(900, "short B")], [0, 0]),
        ([opened(900, text, number) for number in "12" for text in (SYSTEM, OTHER)], [181, 151, 181, 151]),
        ([opened(100, SYSTEM, "one"), opened(900, SYSTEM, "two")], [100, 100]),  # no more than the shortest prompt
        ([opened(100), opened(100)], [0, 0]),
    ],
)
def test_how_much_is_shared_is_estimated(programs: list[Opened], prefixes: list[int]) -> None:
    assumptions = Assumptions()
    found = shared(*programs, assumptions=assumptions)
    assert [program.shared_prefix_tokens for program in found] == prefixes
    assert sum(each.count for each in assumptions) == sum(tokens > 0 for tokens in prefixes)
    assert {each.text for each in assumptions} <= {PREFIX_ESTIMATED}
    ids = [program.shared_prefix_id for program in found]
    assert [each is None for each in ids] == [tokens == 0 for tokens in prefixes]
    assert len(set(ids)) == len(set(prefixes))


def test_equal_first_prompts_are_counted_by_the_source_itself() -> None:
    assumptions = Assumptions()
    programs = shared(opened(333, SYSTEM, "task"), opened(333, SYSTEM, "task"), assumptions=assumptions)
    assert [program.shared_prefix_tokens for program in programs] == [333] * 2
    assert not list(assumptions)


# ---------------------------------------------------------------------------------------- in a workload


def test_statistics_count_who_shares() -> None:
    programs = list(bundled("swebench"))[:5]
    found = trace_stats(programs)
    assert (found.sharing_a_prefix, found.shared_prefix_tokens) == (5, 1200)
    alone = [replace(program, shared_prefix_id=f"own {number}") for number, program in enumerate(programs)]
    assert (trace_stats(alone).sharing_a_prefix, trace_stats(alone).shared_prefix_tokens) == (0, 0)


def test_programs_behind_a_prefix_are_the_same_after_it() -> None:
    before = list(bundled("swebench"))[:4]
    before[1] = replace(before[1], turns=(*before[1].turns, Turn(10, 5, kept_tokens=700)))
    after = put_behind(before, 18_000)
    for one, other in zip(before, after, strict=True):
        assert other.prompt_tokens() == [tokens + 18_000 for tokens in one.prompt_tokens()]
        assert other.reusable_tokens() == [tokens + 18_000 for tokens in one.reusable_tokens()]
    assert {(program.shared_prefix_id, program.shared_prefix_tokens) for program in after} == {("18000 tokens", 19_200)}


def test_what_only_some_programs_shared_is_their_own_behind_a_new_prefix() -> None:
    some, others = (
        Program("a", (Turn(100, 5),), shared_prefix_id="s", shared_prefix_tokens=50),
        Program("b", (Turn(100, 5),)),
    )
    assert [program.shared_prefix_tokens for program in put_behind([some, others], 40)] == [40, 40]
