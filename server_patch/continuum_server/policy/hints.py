"""Hints about holds, and how far they are trusted: predicted tool times, and holds that clients wish for.

A hint counts as much as the program's earlier hints came true. A program without earlier hints begins with the mean
trust in its client's other programs, each of which counts once. A client is the API key to which program ids belong;
without keys, all programs have one client. Hints are not recorded as tool times. A predicted tool time never makes a
hold longer than a rebuild is worth; a wish can, within the server's limits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, log
from typing import cast

from continuum_server.policy.facts import ProgramState, TurnState

CLIENTS = 1024
"""Clients remembered; the client that sent no hint for longest is forgotten first."""
PROGRAMS = 64
"""Programs of a client after which the weight of the earlier programs is halved."""
FADE = 0.95
"""Factor by which each further hint of a program reduces the weight of its earlier hints."""
MOST = 19.0
"""Upper limit of a sum of judgements. With it, a broken hint never raises the trust by making older ones fade."""


def cost_s(hold_s: float, away_s: float, even_s: float) -> float:
    """What a hold cost if the program came back after ``away_s``; a rebuild costs ``even_s``."""
    return away_s if away_s <= hold_s else hold_s + even_s


@dataclass(slots=True)
class ClientTrust:
    """The mean over a client's programs of the share of their hints that came true; each program counts once."""

    first: float
    """Trust before anything is known."""
    programs: float = 0.0
    true: float = 0.0
    square: float = 0.1
    """Mean squared error of its predicted tool times, as logarithms."""

    @property
    def value(self) -> float:
        return (self.first + self.true) / (1.0 + self.programs)

    def missed(self, error: float) -> None:
        """A predicted time was wrong by ``error``, the logarithm of a ratio. An error above 1 counts as 1."""
        self.square += (min(error * error, 1.0) - self.square) / PROGRAMS

    def changed(self, before: float | None, after: float | None) -> None:
        """The share of a program's hints that came true changed; None: no hint of the program was judged yet."""
        if before is None and self.programs >= PROGRAMS:
            self.programs, self.true = self.programs / 2, self.true / 2
        self.programs = max(0.0, self.programs + (after is not None) - (before is not None))
        self.true = min(self.programs, max(0.0, self.true + (after or 0.0) - (before or 0.0)))


@dataclass(slots=True)
class Trust:
    """How far the hints of one program are believed: ``value`` from 0 to 1."""

    client: ClientTrust
    prior: float
    kept: float = 0.0
    broken: float = 0.0

    @property
    def value(self) -> float:
        return (self.prior + self.kept) / (1.0 + self.kept + self.broken)

    def judge(self, kept: float = 0.0, broken: float = 0.0) -> None:
        """A hint came true or not, with these weights. A broken hint of weight 1 halves the sum of the kept ones."""
        before = self._share
        fade = FADE ** (kept + broken)
        self.kept = min(MOST, fade * 0.5**broken * self.kept + kept)
        self.broken = min(MOST, fade * self.broken + broken)
        self.client.changed(before, self._share)

    def replace(self, kept: float, broken: float) -> None:
        """Take a judgement back: the sums are these again."""
        before, self.kept, self.broken = self._share, kept, broken
        self.client.changed(before, self._share)

    @property
    def _share(self) -> float | None:
        known = self.kept + self.broken
        return self.kept / known if known > 0.0 else None


class Clients:
    """Trust by client.

    Args:
        first: trust in a client of whom nothing is known.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._clients: OrderedDict[str | None, ClientTrust] = OrderedDict()

    def trust(self, client: str | None) -> Trust:
        """Trust in a program of the client that sends its first hint."""
        known = self._clients.get(client)
        if known is None:
            known = self._clients[client] = ClientTrust(self._first)
            if len(self._clients) > CLIENTS:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client)
        return Trust(known, known.value)


# ---------------------------------------------------------------------------------------- predicted tool times


@dataclass(slots=True)
class _Guess:
    """The prediction of a turn, and the two holds between which it decided."""

    since_s: float
    predicted_s: float
    hint_s: float
    """The hold if the hint alone counted."""
    learned_s: float
    """The hold without the hint."""
    even_s: float


@dataclass(slots=True)
class _Told:
    """How exact a program's earlier predictions were."""

    trust: Trust
    squares: float
    """Sum of the squared errors, as logarithms, of ``errors`` predictions."""
    errors: float
    guess: _Guess | None = None
    rests_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Parts of recent gaps in which no tool ran: the agent's own work, its network, its queue."""
    rest_s: float = 0.0
    """The median of ``rests_s``."""


class Predictions:
    """Predicted tool times (``pred_tool_s``, ``pred_tool_p90_s``) as a second distribution beside the learned one.

    The prediction stands for a log-normal distribution around it. Its spread follows from ``pred_tool_p90_s``, or else
    from the errors of the program's earlier predictions. Each distribution has its own best hold. The policy takes the
    hold with the lower expected cost under the mixture of both, in which the hint's distribution has the weight of the
    trust. When the program is back, the costs that the two holds would have had are compared, and the trust changes.
    """

    FIRST, PRIOR, LEAST_SPREAD = 0.5, 4.0, 0.05
    """Trust before any prediction was judged; the number of predictions for which the client's spread counts in a new
    program's; the least standard deviation of the logarithm."""
    DELAY_S = 0.25
    """Added to times before they are compared as ratios, since a prediction does not include the agent's own delay."""
    KEPT, BROKEN = (20.0, 1.0), (40.0, 3.0)
    """Weight of a cheaper and of a dearer hold per ``even_s`` of difference in cost, and its upper limit."""
    CHANCES = (0.3, 0.38, 0.2, 0.09, 0.03)
    """Assumed chance that the program is back one spread early, in time, and one, two and three spreads late. Late
    returns get more than their share, because a hold that is too long costs little if the program is back early."""
    P90 = 1.2816

    def __init__(self) -> None:
        self._clients = Clients(self.FIRST)

    def hold_s(
        self, turn: TurnState, now_s: float, even_s: float, learned_s: float, cost: Callable[[float], float] | None
    ) -> float:
        """How long to hold the KV of a turn that ends now. Without a prediction: ``learned_s``.

        Args:
            even_s: seconds of holding that cost as much as a rebuild.
            learned_s: the hold that was chosen without a hint.
            cost: expected cost of a hold according to what was learned; None: nothing was learned yet.
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
        """Standard deviation of the logarithm of the time away."""
        if p90_s is not None and p90_s > predicted_s:
            spread = log((p90_s + self.DELAY_S) / (predicted_s + self.DELAY_S)) / self.P90
        else:
            spread = (told.squares / told.errors) ** 0.5
        return max(spread, self.LEAST_SPREAD)

    def _by_hint(
        self, predicted_s: float, spread: float, even_s: float, learned_s: float
    ) -> tuple[float, float, float]:
        """The best hold if the prediction is right up to its spread, its expected cost, and that of ``learned_s``."""
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
        """A turn of the program arrived: judge what was predicted of its time away."""
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
    """A client's wish for a hold that is longer than the policy's."""

    since_s: float
    hold_s: float
    """The hold that the client wished for, granted or not."""
    own_s: float
    worth_s: float | None
    kept: float
    broken: float
    """``kept`` and ``broken`` are the sums of the trust before the wish."""


@dataclass(slots=True)
class _Wisher:
    """The trust in a program's wishes, and its open wish."""

    trust: Trust
    wish: _Wish | None = None


class Wishes:
    """Holds that clients ask for (``kv_ttl_s``).

    A client may ask for a shorter hold than the policy's, which is granted. If it asks for a longer hold, the seconds
    beyond the policy's hold are granted in proportion to the trust above one half: none at 0.5, all at 1. A wish
    counts as broken until the program is back within the time that was asked for. So the first wish of a client is
    granted in full, and further wishes only when earlier ones have come true. If the policy knows what
    a rebuild is worth, a wish that came true also counts as broken if it cost more than the policy's own hold would
    have.
    """

    FIRST = 1.0
    """Trust before anything is known."""

    def __init__(self) -> None:
        self._clients = Clients(self.FIRST)

    def hold_s(self, turn: TurnState, own_s: float) -> float:
        """How long to hold the KV of a turn that ends now, for which the policy chose ``own_s``."""
        wish_s = turn.ttl_wish_s
        if wish_s is None or wish_s <= own_s:
            return own_s if wish_s is None else wish_s
        wisher = cast("_Wisher | None", turn.program.wisher)
        if wisher is None:
            wisher = turn.program.wisher = _Wisher(self._clients.trust(turn.program.namespace))
        return own_s + max(0.0, 2.0 * wisher.trust.value - 1.0) * (wish_s - own_s)

    def wished(self, program: ProgramState, now_s: float, hold_s: float, own_s: float, worth_s: float | None) -> None:
        """The program asked for ``hold_s`` seconds, longer than the policy's ``own_s``."""
        wisher = cast(_Wisher, program.wisher)
        trust = wisher.trust
        wisher.wish = _Wish(now_s, hold_s, own_s, worth_s, trust.kept, trust.broken)
        trust.judge(broken=1.0)

    def returned(self, program: ProgramState, now_s: float) -> None:
        """A turn of the program arrived."""
        wish = self._taken(program)
        if wish is None or not self._was_worth_it(wish, now_s - wish.since_s):
            return
        trust = cast(_Wisher, program.wisher).trust
        trust.replace(wish.kept, wish.broken)
        trust.judge(kept=1.0)

    def ended(self, program: ProgramState) -> None:
        """The program ended and gave its KV back: its last wish is neither kept nor broken."""
        wish = self._taken(program)
        if wish is not None:
            cast(_Wisher, program.wisher).trust.replace(wish.kept, wish.broken)

    @staticmethod
    def _was_worth_it(wish: _Wish, away_s: float) -> bool:
        if away_s > wish.hold_s or wish.worth_s is None:
            return away_s <= wish.hold_s
        return away_s <= cost_s(wish.own_s, away_s, wish.worth_s)

    @staticmethod
    def _taken(program: ProgramState) -> _Wish | None:
        wisher = cast("_Wisher | None", program.wisher)
        if wisher is None:
            return None
        wish, wisher.wish = wisher.wish, None
        return wish
