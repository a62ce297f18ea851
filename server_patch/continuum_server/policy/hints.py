"""What clients say in advance, and how far each is believed: predicted tool times, and wishes for a hold.

A hint counts as much as its program's earlier hints came true. A program that has no earlier hints begins with what its
client's other programs earned; each of these counts once. A client is the API key to which program ids belong; without
keys all programs are one client's. What a program says changes its own holds only: it is no sample of anything, and no
hint makes a hold longer than a rebuild is worth.
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
"""Programs of a client that count; after so many, the weight of the earlier ones is halved."""
FADE = 0.95
"""Weight of what was known of a program's hints after each further hint."""


def cost_s(hold_s: float, away_s: float, even_s: float) -> float:
    """What a hold cost if the program came back after ``away_s``; a rebuild costs ``even_s``."""
    return away_s if away_s <= hold_s else hold_s + even_s


@dataclass(slots=True)
class ClientTrust:
    """How the hints of a client's programs came true on average; each program counts once."""

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
        """A predicted time was wrong by so much. No error counts more than 1."""
        self.square += (min(error * error, 1.0) - self.square) / PROGRAMS

    def changed(self, before: float | None, after: float | None) -> None:
        """The share of a program's hints that came true changed; None: nothing is known of the program."""
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
        """A hint came true, or did not. The amounts say how much it mattered; each broken one halves what was kept."""
        before = self._share
        self.kept, self.broken = FADE * 0.5**broken * self.kept + kept, FADE * self.broken + broken
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


@dataclass(frozen=True, slots=True)
class _Guess:
    """What was decided at the end of a turn with a prediction."""

    since_s: float
    predicted_s: float
    hint_s: float
    """The hold if the hint alone counted."""
    learned_s: float
    """The hold without the hint."""
    even_s: float


@dataclass(slots=True)
class _Told:
    """What is known of a program's predictions."""

    trust: Trust
    squares: float
    """Sum of the squared errors, as logarithms, of ``errors`` predictions."""
    errors: float
    guess: _Guess | None = None
    rests_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Time away that was not the tool's: the agent's own work, its network, its queue."""

    @property
    def rest_s(self) -> float:
        return sorted(self.rests_s)[len(self.rests_s) // 2] if self.rests_s else 0.0


class Predictions:
    """Predicted tool times (``pred_tool_s``, ``pred_tool_p90_s``) as one more distribution beside the learned one.

    The prediction stands for a log-normal distribution around it, whose spread is the client's (p90) or that of the
    program's earlier predictions. The hold is the one with the least expected cost under the mixture of both
    distributions; the hint's has the weight of the trust. When the program is back, the two holds that each of the
    distributions alone would have chosen are compared: the cheaper one was right.
    """

    FIRST, PRIOR, LEAST_SPREAD = 0.5, 4.0, 0.05
    """Trust before anything is known; how many predictions with its client's spread a new program is taken to have
    made; least standard deviation of the logarithm."""
    DELAY_S = 0.25
    """Added to times before they are compared as ratios: nobody predicts an agent's own delay."""
    KEPT, BROKEN = (20.0, 1.0), (40.0, 3.0)
    """What a cheaper and a dearer hold count, per ``even_s`` of difference, and the most that one counts."""
    POINTS = ((-1.0, 0.3), (0.0, 0.38), (1.0, 0.2), (2.0, 0.09), (3.0, 0.03))
    """Values of a standard normal distribution and how likely each is taken to be, the rare long ones more than they
    are: a hold that is too long costs little where the program is back early."""
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
        points = self._points(predicted_s, turn.tool_hint_p90_s, told)
        holds = self._holds(points, even_s)
        hint_s = min(holds, key=lambda each: each[1])[0]
        told.guess = _Guess(now_s, predicted_s, hint_s, learned_s, even_s)
        weight = told.trust.value
        if cost is None:
            return hint_s if weight >= self.FIRST else learned_s
        by_hint = (
            chance * cost_s(learned_s, at_s, even_s) for at_s, (_, chance) in zip(points, self.POINTS, strict=True)
        )
        tried = [(learned_s, sum(by_hint)), *holds]
        return min(tried, key=lambda each: weight * each[1] + (1.0 - weight) * cost(each[0]))[0]

    def _points(self, predicted_s: float, p90_s: float | None, told: _Told) -> list[float]:
        """Times until the program is back, one for each of ``POINTS``."""
        base_s = predicted_s + self.DELAY_S
        spread = (told.squares / told.errors) ** 0.5
        if p90_s is not None and p90_s > predicted_s:
            spread = log((p90_s + self.DELAY_S) / base_s) / self.P90
        spread = max(spread, self.LEAST_SPREAD)
        return [max(0.0, base_s * exp(spread * z) - self.DELAY_S) for z, _ in self.POINTS]

    def _holds(self, points: list[float], even_s: float) -> list[tuple[float, float]]:
        """Holds that can be best if the program is back after one of ``points``, each with its expected cost."""
        tried, waited_s, left = [(0.0, even_s)], 0.0, 1.0
        for at_s, (_, chance) in zip(points, self.POINTS, strict=True):
            if at_s > even_s:
                break
            waited_s, left = waited_s + chance * at_s, left - chance
            tried.append((at_s, waited_s + left * (at_s + even_s)))
        return tried

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
    """A hold that is longer than the policy's, as its client wished."""

    since_s: float
    hold_s: float
    own_s: float
    worth_s: float | None
    kept: float
    broken: float
    """The trust's sums before the wish was granted."""


@dataclass(slots=True)
class _Wisher:
    """What is known of a program's wishes."""

    trust: Trust
    wish: _Wish | None = None


class Wishes:
    """Holds that clients ask for (``kv_ttl_s``).

    A shorter hold than the policy's is granted as it is. Of a longer one, the part beyond the policy's is granted in
    proportion to the trust. A wish counts as broken until the program is back within the hold, so a client that asks
    for many long holds at once gets less of each. Where the policy knows what a rebuild is worth, the hold must also
    have cost no more than the policy's own.
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
        return own_s + wisher.trust.value * (wish_s - own_s)

    def granted(self, program: ProgramState, now_s: float, hold_s: float, own_s: float, worth_s: float | None) -> None:
        """The program's KV is held for ``hold_s`` seconds, longer than the policy's ``own_s``."""
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
        """The program ended and gave its KV back: its last wish says nothing."""
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
