"""A program's tools: ``Tool`` measures one in a ``with`` block, and a ``Prediction`` says which one may run next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_client.ending import unless_dropped
from continuum_client.errors import InvalidTag, once
from continuum_client.spans import end_tool_span, tool_span
from continuum_client.tagging import check_seconds, check_tool

MAX_RUNS = 256
"""The number of tool runs that are kept between two calls; further runs are dropped."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool between two calls. Instants are seconds on the client's clock."""

    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def busy_seconds(runs: Sequence[ToolRun]) -> float:
    """Return the seconds during which at least one of the tools ran."""
    total, until_s = 0.0, float("-inf")
    for run in sorted(runs, key=lambda run: run.start_s):
        total += max(0.0, run.end_s - max(run.start_s, until_s))
        until_s = max(until_s, run.end_s)
    return total


Tell = Callable[[Mapping[str, object]], None]
"""Sends a tool event to the servers of a program."""


class Tool:
    """A tool that is measured in a ``with`` or ``async with`` block. It counts as run even if the block raises.

    Args:
        tell: sends the events of its start and its end; None: none are sent.
        expect_s: seconds that the start's event says; None: only the end is told.
    """

    def __init__(
        self,
        name: str,
        ran: Callable[[ToolRun], None],
        clock: Callable[[], float],
        program_id: str,
        tell: Tell | None = None,
        expect_s: float | None = None,
    ) -> None:
        self.name = name
        self.seconds: float | None = None
        """How long the tool took; None while it runs."""
        self._ran = ran
        self._clock = clock
        self._start_s = 0.0
        self._program_id = program_id
        self._tell = tell
        self._expect_s = expect_s
        self._span: Any = None

    def __enter__(self) -> Tool:
        if self._tell is not None and self._expect_s is not None:
            self._tell({"event": "started", "pred_tool_s": self._expect_s})
        self._span = tool_span(self.name, self._program_id)
        self._start_s = self._clock()
        return self

    def __exit__(self, kind: object = None, error: object = None, *_: object) -> None:
        end_s = self._clock()
        self.seconds = end_s - self._start_s
        if self._span is not None:
            end_tool_span(self._span, error)
        unless_dropped(kind, lambda: self._ended(end_s))

    def _ended(self, end_s: float) -> None:
        self._ran(ToolRun(self.name, self._start_s, end_s))
        if self._tell is not None:
            self._tell({"event": "finished"})

    async def __aenter__(self) -> Tool:
        return self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__(*raised)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The tool that is expected to run after the next call.

    Raises:
        InvalidTag: a name or a number cannot be sent.
    """

    tool: str
    seconds: float | None = None
    """How long the tool is expected to take (median or mean), in seconds; None: unknown."""
    p90: float | None = None
    """The 90th percentile of the tool's time, in seconds; None: unknown."""

    def __post_init__(self) -> None:
        check_tool(self.tool)
        for value, what in ((self.seconds, "predicted seconds"), (self.p90, "predicted p90")):
            if value is not None:
                check_seconds(value, what)


def tags_of(prediction: Prediction) -> dict[str, Any]:
    """Return the tags that send a prediction."""
    return {"pred_tool": prediction.tool, "pred_tool_s": prediction.seconds, "pred_tool_p90_s": prediction.p90}


Predict = Callable[[Sequence[ToolRun]], Prediction | None]
"""Predicts the tool that runs after a call; None: no prediction.

It is called just before each call is sent, in the thread that sends it, with the tools that ran since the program's
previous call. If it raises, the call is sent without a prediction, and a warning is issued once."""


def check_predict(predict: Predict | None) -> Predict | None:
    """Return ``predict`` if it is a function or None.

    Raises:
        InvalidTag: it is something else.
    """
    if predict is not None and not callable(predict):
        raise InvalidTag(f"predict {predict!r}: must be a function from ToolRuns to a Prediction or None")
    return predict


def predicted(predict: Predict, runs: Sequence[ToolRun]) -> Prediction | None:
    """Return the prediction of the user's function; None if the function fails."""
    try:
        answer = predict(runs)
        if answer is None or isinstance(answer, Prediction):
            return answer
        raise TypeError(f"it returned {type(answer).__name__}; expected Prediction or None")
    except Exception as error:  # noqa: BLE001 - must not raise into the agent
        once.warn("predict", f"predict= failed, so its predictions are left out: {error!r}")
        return None
