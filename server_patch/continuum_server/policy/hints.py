"""Hints about holds, and how far they are trusted: predicted tool times, and wishes for holds of a certain length.

Trust in a program's hints depends on how many of its earlier hints came true. It begins with the mean trust in the
other programs of the same client, each of which counts once. A client is an API key; without API keys, all programs
have the same client. Hints are not recorded as tool times. A predicted tool time never makes a hold longer than its
break-even time; a wish can, within the server's guards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, log
from typing import cast

from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.lru import Lru

CLIENTS = 1024
"""Number of clients remembered. The client that sent no hint for longest is forgotten first."""
PROGRAMS = 64
"""Number of programs of a client after which the weight of the earlier programs is halved."""
FADE = 0.95
"""Factor by which each further hint of a program reduces the weight of its earlier hints."""
MOST = 19.0
"""Upper limit of ``Trust.kept`` and ``Trust.broken``. With it, a broken hint never raises the trust by making older
hints fade."""


def cost_s(hold_s: float, away_s: float, even_s: float) -> float:
    """Return the cost of a hold whose program returned after ``away_s``. A rebuild costs ``even_s``."""
    return away_s if away_s <= hold_s else hold_s + even_s


@dataclass(slots=True)
class ClientTrust:
    """Trust in a client: the mean over its programs of the share of their hints that came true."""

    first: float
    """Trust before any hint was judged."""
    programs: float = 0.0
    """Number of programs with a judged hint."""
    true: float = 0.0
    """Sum over these programs of the share of their hints that came true."""
    square: float = 0.1
    """Mean squared error of the logarithms of the client's predicted tool times."""

    @property
    def value(self) -> float:
        return (self.first + self.true) / (1.0 + self.programs)

    def missed(self, error: float) -> None:
        """Add the error of a predicted time, as the logarithm of a ratio. An error above 1 counts as 1."""
        self.square += (min(error * error, 1.0) - self.square) / PROGRAMS

    def changed(self, before: float | None, after: float | None) -> None:
        """Note that the share of a program's hints that came true changed. None: no hint of the program was judged."""
        if before is None and self.programs >= PROGRAMS:
            self.programs, self.true = self.programs / 2, self.true / 2
        self.programs = max(0.0, self.programs + (after is not None) - (before is not None))
        self.true = min(self.programs, max(0.0, self.true + (after or 0.0) - (before or 0.0)))


@dataclass(slots=True)
class Trust:
    """Trust in the hints of one program: ``value`` is from 0 to 1."""

    client: ClientTrust
    prior: float
    """Trust before any hint of the program was judged."""
    kept: float = 0.0
    """Weight of the hints that came true."""
    broken: float = 0.0
    """Weight of the hints that did not come true."""

    @property
    def value(self) -> float:
        return (self.prior + self.kept) / (1.0 + self.kept + self.broken)

    def judge(self, kept: float = 0.0, broken: float = 0.0) -> None:
        """Add the judgement of a hint. A broken hint of weight 1 halves the weight of the hints that came true."""
        before = self._share
        fade = FADE ** (kept + broken)
        self.kept = min(MOST, fade * 0.5**broken * self.kept + kept)
        self.broken = min(MOST, fade * self.broken + broken)
        self.client.changed(before, self._share)

    def replace(self, kept: float, broken: float) -> None:
        """Set ``kept`` and ``broken``, to take a judgement back."""
        before, self.kept, self.broken = self._share, kept, broken
        self.client.changed(before, self._share)

    @property
    def _share(self) -> float | None:
        known = self.kept + self.broken
        return self.kept / known if known > 0.0 else None


class Clients:
    """Trust by client.

    Args:
        first: trust in a client before any hint was judged.
    """

    def __init__(self, first: float) -> None:
        self._clients = Lru[str | None, ClientTrust](lambda: ClientTrust(first), CLIENTS)

    def trust(self, client: str | None) -> Trust:
        """Return the trust in a program that sends its first hint."""
        known = self._clients.of(client)
        return Trust(known, known.value)


# ---------------------------------------------------------------------------------------- predicted tool times


@dataclass(slots=True)
class _Guess:
    """A prediction that waits to be judged, and the two holds of which one was chosen."""

    since_s: float
    predicted_s: float
    hint_s: float
    """The best hold according to the hint."""
    learned_s: float
    """The best hold without the hint."""
    even_s: float
    """The break-even time."""


@dataclass(slots=True)
class _Told:
    """The errors of a program's earlier predictions."""

    trust: Trust
    squares: float
    """Sum of the squared errors of the logarithms of ``errors`` predictions."""
    errors: float
    guess: _Guess | None = None
    rests_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """The parts of recent gaps in which no tool ran (the agent worked itself or waited)."""
    rest_s: float = 0.0
    """The median of ``rests_s``."""


class Predictions:
    """Holds that take predicted tool times (``pred_tool_s``, ``pred_tool_p90_s``) into account.

    The tool time is assumed to have a log-normal distribution around the prediction. Its spread follows from
    ``pred_tool_p90_s``, or else from the errors of the program's earlier predictions. This distribution and the learned
    one each have a best hold. The hold with the lower expected cost is chosen. The expected cost is that of the mixture
    of both distributions, in which the weight of the hint's distribution is the trust. When the program returns, the
    costs that the two holds would have had are compared, and the trust changes.
    """

    FIRST, PRIOR, LEAST_SPREAD = 0.5, 4.0, 0.05
    """Trust before any prediction was judged; weight of the client's errors in a new program's, as a number of
    predictions; least standard deviation of the logarithm."""
    DELAY_S = 0.25
    """Added to times before their ratio is taken, because a prediction does not include the agent's own delay."""
    KEPT, BROKEN = (20.0, 1.0), (40.0, 3.0)
    """Weight of a judgement per ``even_s`` that the hint's hold cost less (``KEPT``) or more (``BROKEN``) than the
    learned hold, and the upper limit of this weight."""
    CHANCES = (0.3, 0.38, 0.2, 0.09, 0.03)
    """Assumed probability that the program returns one spread early, in time, and one, two and three spreads late. Late
    returns are overrated, because a hold that is too long costs little if the program returns early."""
    P90 = 1.2816
    """The 90th percentile of the standard normal distribution."""

    def __init__(self) -> None:
        self._clients = Clients(self.FIRST)

    def hold_s(
        self, turn: TurnState, now_s: float, even_s: float, learned_s: float, cost: Callable[[float], float] | None
    ) -> float:
        """Return how long to hold the KV of a turn that ends now, which is ``learned_s`` without a prediction.

        Args:
            even_s: break-even time of the hold.
            learned_s: the best hold without a hint.
            cost: returns the expected cost of a hold under the learned distribution; None: nothing was learned yet.
        """
        if turn.tool_hint_s is None or even_s <= 0.0:
            return learned_s
        program = turn.program
        told = cast("_Told | None", program.told)
        if told is None:
            trust = self._clients.trust(program.namespace)
            told = program.told = _Told(trust, self.PRIOR * trust.client.square, self.PRIOR)
        predicted_s = turn.tool_hint_s + told.rest_s
        spread = self._spread(predicted_s, turn.tool_hint_p90_s, told)
        hint_s, hint_cost, learned_cost = self._by_hint(predicted_s, spread, even_s, learned_s)
        told.guess = _Guess(now_s, predicted_s, hint_s, learned_s, even_s)
        weight = told.trust.value
        if cost is None:
            return hint_s if weight >= self.FIRST else learned_s
        hint_cost, learned_cost = (
            weight * hint_cost + (1.0 - weight) * cost(hint_s),
            weight * learned_cost + (1.0 - weight) * cost(learned_s),
        )
        return hint_s if hint_cost < learned_cost else learned_s

    def _spread(self, predicted_s: float, p90_s: float | None, told: _Told) -> float:
        """Return the standard deviation of the logarithm of the time away."""
        if p90_s is not None and p90_s > predicted_s:
            spread = log((p90_s + self.DELAY_S) / (predicted_s + self.DELAY_S)) / self.P90
        else:
            spread = (told.squares / told.errors) ** 0.5
        return max(spread, self.LEAST_SPREAD)

    def _by_hint(
        self, predicted_s: float, spread: float, even_s: float, learned_s: float
    ) -> tuple[float, float, float]:
        """Return the best hold according to the hint, its expected cost, and the expected cost of ``learned_s``."""
        factor = exp(spread)
        at_s = (predicted_s + self.DELAY_S) / factor
        best_s, best_cost, learned_cost, waited_s, left = 0.0, even_s, 0.0, 0.0, 1.0
        for chance in self.CHANCES:
            away_s = max(0.0, at_s - self.DELAY_S)
            at_s *= factor
            learned_cost += chance * (away_s if away_s <= learned_s else learned_s + even_s)
            waited_s, left = waited_s + chance * away_s, left - chance
            expected = waited_s + left * (away_s + even_s)
            if away_s <= even_s and expected < best_cost:
                best_s, best_cost = away_s, expected
        return best_s, best_cost, learned_cost

    def returned(self, turn: TurnState, now_s: float) -> None:
        """Judge the prediction of the gap that the arrival of ``turn`` ends."""
        program = turn.program
        told = cast("_Told | None", program.told)
        if told is None:
            return
        guess, told.guess = told.guess, None
        if program.last_finish_s is None:
            return
        away_s = now_s - program.last_finish_s
        if turn.ran_s is not None:
            told.rests_s.append(max(0.0, away_s - turn.ran_s))
            told.rest_s = sorted(told.rests_s)[len(told.rests_s) // 2]
        if guess is None or guess.since_s != program.last_finish_s:
            return
        error = log((away_s + self.DELAY_S) / (guess.predicted_s + self.DELAY_S))
        told.squares, told.errors = FADE * told.squares + min(error * error, 4.0), FADE * told.errors + 1.0
        told.trust.client.missed(error)
        learned_s = cost_s(guess.learned_s, away_s, guess.even_s)
        gain = (learned_s - cost_s(guess.hint_s, away_s, guess.even_s)) / guess.even_s
        if abs(gain) > 0.01:
            told.trust.judge(_counted(gain, *self.KEPT), _counted(-gain, *self.BROKEN))


def _counted(amount: float, factor: float, most: float) -> float:
    return min(most, factor * max(0.0, amount))


# ------------------------------------------------------------------------------------------------------ wishes


@dataclass(slots=True)
class _Wish:
    """A client's wish for a hold of another length than the policy's."""

    since_s: float
    hold_s: float
    """The hold for which the client asked, granted or not."""
    own_s: float
    """The policy's hold."""
    worth_s: float | None
    """The break-even time; None: unknown, and then a rebuild costs as much as the hold."""
    kept: float
    """``Trust.kept`` before the wish."""
    broken: float
    """``Trust.broken`` before the wish."""

    def gain_s(self, away_s: float) -> float:
        """Return how much less the hold has cost than the policy's, when the program returns after ``away_s``."""
        worth_s = self.hold_s if self.worth_s is None else self.worth_s
        return cost_s(self.own_s, away_s, worth_s) - cost_s(self.hold_s, away_s, worth_s)


@dataclass(slots=True)
class _Wisher:
    """The trust in a program's wishes, and its wish that waits to be judged."""

    trust: Trust
    wish: _Wish | None = None


class Wishes:
    """Holds for which clients ask (``kv_ttl_s``).

    With trust t, the KV is held for ``own + max(0, 2 t - 1) * (wish - own)``: as long as the policy chose if t is at
    most 0.5, and as long as the client asks if t is 1. A client's first wish has trust 1. When the program returns, the
    costs of the client's hold and of the policy's hold are compared (``cost_s``). If the client's hold costs less,
    the trust rises; if it costs more, the trust falls. After a wish for a longer hold than the policy's, the trust is
    lower until the program returns.

    If the policy knows no break-even time, a shorter hold than the policy's is always granted.
    """

    FIRST = 1.0
    """Trust before any wish was judged."""

    def __init__(self) -> None:
        self._clients = Clients(self.FIRST)

    def granted_s(
        self, program: ProgramState, wish_s: float, own_s: float, worth_s: float | None, now_s: float
    ) -> float:
        """Return how long to hold the program's KV, for which it asks ``wish_s`` seconds.

        Args:
            own_s: the policy's hold.
            worth_s: its break-even time; None: unknown.
        """
        shorter = wish_s <= own_s
        if wish_s == own_s or (shorter and worth_s is None):
            return wish_s
        wisher = cast("_Wisher | None", program.wisher)
        if wisher is None:
            wisher = program.wisher = _Wisher(self._clients.trust(program.namespace))
        trust = wisher.trust
        granted_s = own_s + max(0.0, 2.0 * trust.value - 1.0) * (wish_s - own_s)
        wisher.wish = _Wish(now_s, wish_s, own_s, worth_s, trust.kept, trust.broken)
        if not shorter:
            trust.judge(broken=1.0)
        return granted_s

    def returned(self, program: ProgramState, now_s: float) -> None:
        """Judge the program's wish, because one of its turns arrived."""
        wish = self._taken(program)
        if wish is None:
            return
        trust, gain_s = cast(_Wisher, program.wisher).trust, wish.gain_s(now_s - wish.since_s)
        longer = wish.hold_s > wish.own_s
        if gain_s > 0.0 or (longer and gain_s == 0.0):
            trust.replace(wish.kept, wish.broken)
            trust.judge(kept=1.0)
        elif gain_s < 0.0 and not longer:
            trust.judge(broken=1.0)

    def ended(self, program: ProgramState) -> None:
        """Forget the wish of a program that ended. It counts neither as kept nor as broken."""
        wish = self._taken(program)
        if wish is not None:
            cast(_Wisher, program.wisher).trust.replace(wish.kept, wish.broken)

    @staticmethod
    def _taken(program: ProgramState) -> _Wish | None:
        wisher = cast("_Wisher | None", program.wisher)
        if wisher is None:
            return None
        wish, wisher.wish = wisher.wish, None
        return wish
