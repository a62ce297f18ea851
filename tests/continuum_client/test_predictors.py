"""Guesses: what is sent, what is left out, and that a bad predictor never reaches the agent."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from client_fakes import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from continuum_client import ContinuumWarning, InvalidTag, OpenAI, Prediction, RunningQuantiles
from continuum_client.predictors import MAX_TOOLS, SAMPLES, Guesses, _worker

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def settled() -> None:
    """Wait until the predictors' thread has done what it was given."""
    done = threading.Event()
    _worker.submit("test", done.set)
    assert done.wait(60)


def test_off_by_default(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    with client.program("p") as p:
        for _ in range(3):
            with p.tool("pytest"):
                pass
            client.chat.completions.create(**ASK)
    assert all("pred_tool" not in turn.body["vllm_xargs"] for turn in server.turns)


def test_running_quantiles_are_sent(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    for name in ("first", "second"):
        with client.program(name, predict=True) as p:
            client.chat.completions.create(**ASK)
            for tool in ("edit", "pytest", "edit"):
                with p.tool(tool):
                    pass
                client.chat.completions.create(**ASK)
    guesses = [turn.body["vllm_xargs"].get("pred_tool") for turn in server.turns]
    assert guesses == [None, None, None, "pytest", "edit", "pytest", "edit", "pytest"]
    told = server.turns[-1].body["vllm_xargs"]
    assert told["pred_tool_s"] <= told["pred_tool_p90_s"]


def test_the_agents_own_word_counts_more(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", predict=True)
    with client.program("p") as p:
        with p.tool("edit"):
            pass
        p.predict("deploy", 30)
        client.chat.completions.create(**ASK)
    with client.program("q", predict=False) as p:
        with p.tool("edit"):
            pass
        client.chat.completions.create(**ASK)
    assert server.turns[0].body["vllm_xargs"]["pred_tool"] == "deploy"
    assert "pred_tool" not in server.turns[1].body["vllm_xargs"]


@given(st.lists(st.floats(0, 1000, allow_nan=False), min_size=1, max_size=2 * SAMPLES))
def test_quantiles(times: list[float]) -> None:
    quantiles = RunningQuantiles()
    for seconds in times:
        quantiles.observe("t", seconds, None)
    guess = quantiles.predict(None)
    kept = sorted(times[-SAMPLES:])
    assert guess is not None
    assert guess.seconds is not None
    assert guess.p90 is not None
    for value, share in ((guess.seconds, 0.5), (guess.p90, 0.9)):
        assert value in kept
        assert sum(seconds <= value for seconds in kept) >= share * len(kept)
        assert sum(seconds < value for seconds in kept) < share * len(kept)


def test_memory_is_bounded() -> None:
    quantiles = RunningQuantiles()
    for number in range(2 * MAX_TOOLS):
        quantiles.observe(f"t{number}", 1.0, f"t{number - 1}" if number else None)
    assert len(quantiles._times) == MAX_TOOLS
    assert len(quantiles._followers) <= MAX_TOOLS + 1


class Own:
    """A predictor that waits to be let go."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.seen: list[tuple[str, float, str | None]] = []

    def observe(self, tool: str, seconds: float, previous: str | None) -> None:
        self.seen.append((tool, seconds, previous))

    def predict(self, previous: str | None) -> Prediction | None:
        self.may_answer.wait(60)
        return Prediction("grep", 1.0, 2.0)


def test_a_slow_predictor_delays_nothing(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    own = Own()
    client = OpenAI(base_url=server.url, dialect="vllm", predict=own)
    with client.program("p"):
        client.chat.completions.create(**ASK)  # it has not answered: the call leaves without its guess
        own.may_answer.set()
        settled()
        client.chat.completions.create(**ASK)
    assert [turn.body["vllm_xargs"].get("pred_tool") for turn in server.turns] == [None, "grep"]


def test_observations_arrive_in_order() -> None:
    own = Own()
    own.may_answer.set()
    guesses = Guesses(own)
    for number in range(50):
        guesses.ran(f"t{number}", float(number))
    settled()
    assert own.seen == [(f"t{number}", float(number), f"t{number - 1}" if number else None) for number in range(50)]


class Broken:
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def observe(self, tool: str, seconds: float, previous: str | None) -> None:
        raise RuntimeError("no")

    def predict(self, previous: str | None) -> Any:
        return self.answer()


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: "pytest", lambda: Prediction("x", -1.0)])
def test_a_broken_predictor_is_one_warning(serve: Callable[..., FakeServer], answer: Callable[[], Any]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with client.program("p", predict=Broken(answer)) as p:
            for _ in range(3):
                with p.tool("pytest"):
                    pass
                client.chat.completions.create(**ASK)
            settled()
    ours = [one for one in caught if issubclass(one.category, ContinuumWarning)]
    assert len(ours) == 1
    assert "predictor Broken failed" in str(ours[0].message)
    assert all("pred_tool" not in turn.body["vllm_xargs"] for turn in server.turns)


def test_impossible_predictions() -> None:
    for wrong in (("", 1.0, None), ("t", -1.0, None), ("t", 1.0, float("nan"))):
        with pytest.raises(InvalidTag):
            Prediction(*wrong)
