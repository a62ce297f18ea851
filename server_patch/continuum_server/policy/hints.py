"""Holds that use predicted tool times (``pred_tool_s``, ``pred_tool_p90_s``), as far as a client's predictions helped.

A prediction comes with the request, or later while the tool runs (``ToolEvent``). A client is an API key; without API
keys, all programs have the same client. Predictions are not recorded as tool times, and never make a hold longer than
its break-even time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import ProgramState, ToolEvent, TurnState
from continuum_server.policy.lru import Lru

CLIENTS = 1024
"""Number of clients remembered. The client that sent no prediction for longest is forgotten first."""
PREDICTIONS = 8
"""Number of predictions over which a client's score and error are averaged."""
LOSS = 2.0
"""Weight of a loss in the score, against a saving."""
DELAY_S = 0.25
"""Added to times before their ratio is taken, because a prediction does not include the agent's own delay."""
USUAL_ERROR = 0.1
"""Assumed mean squared error of the logarithm of predicted times, until a client's is known."""
LATE_DEVIATIONS = 2.0
"""KV is held until the program is this many standard deviations late, measured on the logarithm of the time."""


def cost_s(hold_s: float, tool_s: float, even_s: float) -> float:
    """Return the cost of a hold whose program returned after ``tool_s``. A rebuild costs ``even_s``."""
    return tool_s if tool_s <= hold_s else hold_s + even_s


@dataclass(slots=True)
class Client:
    """How good a client's predictions were."""

    score: RecentMean
    """Mean saving, in rebuilds, by the holds that they lead to against those without. Losses count ``LOSS`` times."""
    error: RecentMean
    """Mean squared error of the logarithm of the predicted times."""


@dataclass(slots=True)
class OpenPrediction:
    """The time between two turns of a program, what was predicted of it, and the two candidate holds.

    Holds are seconds from the end of the first turn on.
    """

    since_s: float
    """When the first turn ended."""
    even_s: float
    """The break-even time."""
    learned_s: float
    """The hold without a prediction."""
    hinted_s: float = 0.0
    """The hold according to the client."""
    client: Client | None = None
    """Who predicted; None: nobody did."""
    predicted_s: float | None = None
    """The prediction, in seconds from ``after_s`` on; None: the client only said that the tool has ended."""
    after_s: float = 0.0
    """When the prediction was made, in seconds from ``since_s`` on."""


class Predictions:
    """Chooses whether a prediction sets the length of a hold.

    If the program is predicted to return before the break-even time, its KV is held until it would be late; otherwise
    not at all. When the program returns, the costs of both holds are compared. The predictions of a client are used as
    long as this *score* of its recent ones is positive, and its first ones in any case.
    """

    def __init__(self) -> None:
        self._clients = Lru[str | None, Client](
            lambda: Client(RecentMean(PREDICTIONS), RecentMean(PREDICTIONS)), CLIENTS
        )

    def hold_s(self, turn: TurnState, now_s: float, even_s: float, learned_s: float) -> float:
        """Return how long to hold the KV of a turn that ends now, which is ``learned_s`` without a prediction.

        Args:
            even_s: break-even time of the hold.
        """
        turn.program.prediction = None
        if even_s <= 0.0:
            return learned_s
        gap = turn.program.prediction = OpenPrediction(now_s, even_s, learned_s)
        if turn.tags.pred_tool_s is None:
            return learned_s
        return self._predict(gap, turn.program.namespace, turn.tags.pred_tool_s, turn.tags.pred_tool_p90_s)

    def told(self, program: ProgramState, event: ToolEvent, now_s: float) -> float | None:
        """Return how long to hold the program's KV, from the end of its last turn on, now that its client sent an
        event; None: as before, because the policy asked for no hold."""
        gap = program.prediction
        if gap is None or gap.since_s != program.last_finish_s:
            return None
        gap_s = now_s - gap.since_s
        if event.predicted_s is not None:
            return self._predict(gap, program.namespace, event.predicted_s, event.p90_s, gap_s)
        gap.client, gap.hinted_s = self._clients.of(program.namespace), gap.even_s
        return self._better(gap)

    def _predict(
        self, gap: OpenPrediction, key: str | None, predicted_s: float, p90_s: float | None, after_s: float = 0.0
    ) -> float:
        """Note a prediction that is made ``after_s`` after the turn's end, and return the hold."""
        gap.client, gap.predicted_s, gap.after_s = self._clients.of(key), predicted_s, after_s
        late_s = after_s + _late_s(predicted_s, p90_s, gap.client)
        gap.hinted_s = min(late_s, gap.even_s) if after_s + predicted_s <= gap.even_s else after_s
        return self._better(gap)

    def _better(self, gap: OpenPrediction) -> float:
        """Return the hold according to the client, if its recent predictions saved more than they cost."""
        return gap.hinted_s if gap.client is not None and gap.client.score.value >= 0.0 else gap.learned_s

    def returned(self, turn: TurnState, now_s: float) -> None:
        """Judge the prediction of the tool time that the arrival of ``turn`` ends."""
        made, turn.program.prediction = turn.program.prediction, None
        if made is None or made.client is None or made.since_s != turn.program.last_finish_s:
            return
        tool_s = now_s - made.since_s
        if made.predicted_s is not None:
            ratio = (tool_s - made.after_s + DELAY_S) / (made.predicted_s + DELAY_S)
            made.client.error.add(min(1.0, log(ratio) ** 2))
        saved_s = cost_s(made.learned_s, tool_s, made.even_s) - cost_s(made.hinted_s, tool_s, made.even_s)
        saved = max(-1.0, min(1.0, saved_s / made.even_s))
        made.client.score.add(saved if saved > 0.0 else LOSS * saved)


def _late_s(predicted_s: float, p90_s: float | None, client: Client) -> float:
    """Return the time at which a program that was predicted to return after ``predicted_s`` is late."""
    if p90_s is not None and p90_s > predicted_s:
        deviation = log((p90_s + DELAY_S) / (predicted_s + DELAY_S)) / 1.2816  # the normal distribution's P90
    else:
        deviation = (client.error.value if client.error.count else USUAL_ERROR) ** 0.5
    return (predicted_s + DELAY_S) * exp(LATE_DEVIATIONS * deviation)
