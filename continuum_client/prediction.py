"""Predictions of the tool that runs next: made by a function of the user's, sent with the program's next call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from continuum_client.errors import InvalidTag, once
from continuum_client.tagging import check_seconds, check_tool
from continuum_client.tool_runs import ToolRun


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
