"""Prompts as text: they have the trace's lengths within 2% from the second turn on, however a server counts."""

from __future__ import annotations

import pytest
from continuum_bench.live.closing_notes import length_notes
from continuum_bench.live.contexts import SentTexts, TokenRates
from continuum_bench.live.http import StreamedAnswer
from continuum_bench.live.load_settings import LoadCounters
from continuum_traces.playing.conversation import open_turn
from continuum_traces.schema import Program, Turn
from continuum_traces.wire.answers import Answer


def ratios(turns: list[Turn], per_word: float, per_message: int, thoughts: int = 0) -> list[float]:
    """The length of each prompt, by a server that counts so many tokens for a word and a message, to the trace's."""
    program = Program("p", tuple(turns))
    context, found = SentTexts(program, "key", "run", TokenRates()), []
    for index, turn in enumerate(turns):
        open_turn(context, program, index)
        sent = context.body(turn)["messages"]
        tokens = sum(round(len(message["content"].split()) * per_word) + per_message for message in sent)
        found.append(tokens / program.prompt_tokens()[index])
        text = "w " * round((turn.output_tokens - thoughts) / per_word)
        reply = StreamedAnswer(prompt_tokens=tokens, output_tokens=turn.output_tokens, reasoning_tokens=thoughts)
        reply.texts[0] = [text]
        context.add_output(index, turn, reply)
    return found


CARRIED = [Turn(400, 200, carried_tokens=20), *[Turn(60, 200, carried_tokens=20)] * 7]
SHORT = [Turn(400, 10), *[Turn(8, 10)] * 11]
ORDINARY = [Turn(2000, 100), *[Turn(300, 100)] * 7]
COMPACTED = [Turn(2000, 100), Turn(300, 100), Turn(200, 100, kept_tokens=500), Turn(300, 50), Turn(300, 50)]


@pytest.mark.parametrize(("per_word", "per_message"), [(1.0, 4), (1.3, 4), (1.2, 6)])
@pytest.mark.parametrize("turns", [CARRIED, SHORT, ORDINARY, COMPACTED], ids=["carried", "short", "ordinary", "kept"])
def test_the_length_is_the_trace_s_from_the_second_turn_on(
    turns: list[Turn], per_word: float, per_message: int
) -> None:
    for ratio in ratios(turns, per_word, per_message)[1:]:
        assert ratio == pytest.approx(1.0, abs=0.02)


def test_thoughts_are_not_carried() -> None:
    assert ratios(CARRIED, 1.0, 4, thoughts=180)[1:] == pytest.approx([1.0] * 7, abs=0.02)


@pytest.mark.parametrize(
    ("words", "messages", "tokens", "rates"),
    [
        (100, 0, 1e6, (4.0, 4.0)),
        (100, 0, 0, (0.25, 4.0)),
        (0, 1, 1e6, (1.0, 64.0)),
        (0, 1, -1e6, (1.0, 0.0)),
    ],
)
def test_rates_stay_within_what_tokenizers_do(
    words: int, messages: int, tokens: float, rates: tuple[float, float]
) -> None:
    """A server that counts nonsense does not make prompts endless, or empty."""
    learned = TokenRates()
    for _ in range(50):
        learned.learn(words, messages, tokens)
    assert (learned.per_word, learned.per_message) == rates


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ((100, 20), []),
        ((None, 20), ["the server sent no token counts for 1 turn"]),
        ((110, 20), ["prompts had 1.100 of the trace's tokens, by the server's count"]),
        ((100, 21), ["answers had 1.050 of the trace's tokens, by the server's count"]),
        ((100, None), ["the server sent no token counts for 1 turn"]),
    ],
)
def test_lengths_that_differ_from_the_trace_are_said(counted: tuple[int | None, int | None], said: list[str]) -> None:
    counters = LoadCounters()
    counters.count(Answer(prompt_tokens=counted[0], output_tokens=counted[1]), 100, 20)
    assert length_notes(counters, steered=False) == said
    steered = [note for note in length_notes(counters, steered=True) if note not in said]
    by_chance = counted in ((100, 20), (100, 21))
    assert steered == ["prompts had 1.000 of the trace's tokens, by the server's count"] * by_chance
