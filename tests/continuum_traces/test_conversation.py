"""A program's closed loop: what is wanted when, and the records that come of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from continuum_traces.playing.conversation import Conversation, Ended, Send, Wait, converse, go_on, open_turn
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord
from hypothesis import given
from hypothesis import strategies as st


class Counting:
    """A context that knows nothing but its length."""

    def __init__(self, shared: int = 0) -> None:
        self.tokens = shared

    def keep(self, tokens: int) -> None:
        self.tokens = min(self.tokens, tokens)

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        self.tokens += tokens

    def add_output(self, index: int, turn: Turn, answer: None) -> None:
        self.tokens += turn.carried


CALLS = (ToolCall("ls", 1.0), ToolCall("make", 2.0, start_s=0.5), ToolCall("cd", None))
PROGRAM = Program("p", (Turn(50, 8, carried_tokens=3, tool_calls=CALLS), Turn(20, 4)), parent_id="caller")


def started(program: Program = PROGRAM) -> tuple[Conversation[None], list[TurnRecord]]:
    conversation = converse(program, "p#1", 10.0, Counting(), lambda index: f"turn{index}")
    assert go_on(conversation, None, list[TurnRecord]().append) == Wait(0, 10.0)
    return conversation, []


def test_a_turn_is_waited_for_sent_and_recorded() -> None:
    conversation, records = started()
    send = go_on(conversation, None, records.append)
    assert isinstance(send, Send)
    assert (send.tags.program_id, send.tags.parent_id, send.tags.turn_id) == ("p#1", "caller", "turn0")
    assert (send.tags.this_func_call, send.tags.is_last_step) == ("make", False)  # the tool that ends last
    answered = Ended(11.0, 13.0, None, first_token_s=12.0, prompt_tokens=50, output_tokens=8)
    assert go_on(conversation, answered, records.append) == Wait(1, 15.5)
    last = go_on(conversation, None, records.append)
    assert isinstance(last, Send)
    assert last.tags.is_last_step
    assert go_on(conversation, Ended(15.5, 16.0, None), records.append) is None
    assert [(r.program_id, r.turn_id, r.due_s, r.sent_s, r.finish_s, r.gap_s, r.is_last) for r in records] == [
        ("p#1", "turn0", 10.0, 11.0, 13.0, 2.5, False),
        ("p#1", "turn1", 15.5, 15.5, 16.0, None, True),
    ]
    assert records[0].tools == ("ls", "make", "cd")


def test_a_turn_is_due_earlier_if_waits_are_shortened() -> None:
    """Three seconds of its second wait are skipped, and those of its first do not count again."""
    records, skipped = list[TurnRecord](), [1.0]
    conversation = converse(PROGRAM, "p", 10.0, Counting(), str, skipped_s=lambda: sum(skipped))
    go_on(conversation, None, records.append)
    skipped.append(0.5)
    go_on(conversation, None, records.append)
    assert go_on(conversation, Ended(11.0, 13.0, None), records.append) == Wait(1, 15.5)
    skipped.append(2.0)
    go_on(conversation, None, records.append)
    go_on(conversation, Ended(13.5, 16.0, None), records.append)
    assert [record.due_s for record in records] == [9.5, 13.5]


@pytest.mark.parametrize("finish_s", [12.0, None])
def test_a_turn_that_fails_is_the_programs_last(finish_s: float | None) -> None:
    conversation, records = started()
    go_on(conversation, None, records.append)
    failed: Ended[None] = Ended(11.0, finish_s, error="http-500: no", failed_tries=("http-500",))
    assert go_on(conversation, failed, records.append) is None
    (record,) = records
    assert (record.due_s, record.sent_s, record.finish_s) == (10.0, 11.0, finish_s)
    assert (record.error, record.failed_tries, record.tools) == ("http-500: no", ("http-500",), ())


def test_a_program_given_up_between_turns_never_sends_the_next() -> None:
    conversation, records = started()
    assert go_on(conversation, Ended(4.0, 4.0, error="program-limit: 1 s"), records.append) is None
    (record,) = records
    assert (record.turn, record.due_s, record.sent_s, record.error) == (0, 4.0, 4.0, "program-limit: 1 s")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any lengths, rewritten histories and shared prefixes that a trace may hold."""
    turns: list[Turn] = []
    shared = draw(st.integers(0, 30))
    context = 0
    for index in range(draw(st.integers(1, 6))):
        kept = draw(st.none() | st.integers(0, context)) if index else None
        output = draw(st.integers(1, 20))
        carried = draw(st.none() | st.integers(0, output))
        turns.append(Turn(draw(st.integers(shared + 1 if index == 0 else 0, 60)), output, carried, kept))
        context = (context if kept is None else kept) + turns[-1].new_input_tokens + turns[-1].carried
    return Program("p", tuple(turns), shared_prefix_id="s" if shared else None, shared_prefix_tokens=shared)


@given(programs())
def test_prompts_are_as_long_as_the_trace_says(program: Program) -> None:
    context, records, lengths = Counting(program.shared_prefix_tokens), list[TurnRecord](), list[int]()
    conversation: Conversation[None] = converse(program, "p", 0.0, context, str)
    want, now_s = go_on(conversation, None, records.append), 0.0
    while want is not None:
        if isinstance(want, Wait):
            assert want.until_s >= now_s
            want, now_s = go_on(conversation, None, records.append), want.until_s
        else:
            lengths.append(context.tokens)
            want = go_on(conversation, Ended(now_s, now_s + 1.0, None), records.append)
    assert lengths == program.prompt_tokens()
    assert [record.reusable_tokens for record in records] == program.reusable_tokens()
    for before, after in pairwise(records):
        assert after.due_s == before.finish_s + before.gap_s  # type: ignore[operator]


@pytest.mark.parametrize("kept", [None, 0, 30, 99, 100, 101])
def test_a_first_prompt_that_keeps_less_than_the_shared_prefix_has_its_whole_length(kept: int | None) -> None:
    program = Program("p", (Turn(150, 4, kept_tokens=kept),), shared_prefix_id="head", shared_prefix_tokens=100)
    context = Counting(shared=100)
    open_turn(context, program, 0)
    assert [context.tokens] == program.prompt_tokens() == [150]
