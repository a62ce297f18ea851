"""Texts of options that have forms of their own, such as ``gamma:CV``.

The forms of an option are part of its annotation, like a range. So every text is checked before anything starts. If a
text is wrong, the error shows the form whose name it begins with, or else all forms of the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from continuum_server.policy.limits import LimitError, Range, check, described
from continuum_traces.names import near
from continuum_traces.schema import LANES
from continuum_traces.wire import MAX_HINT_S

from continuum_bench.errors import OptionError
from continuum_bench.options.declare import MOST_S, Limit, number_in

Share = Annotated[float, Range(0, 1)]
Factor = Annotated[float, Range(1e-6, 1e6)]
Seconds = Annotated[float, Range(0, MOST_S)]
Amount = Annotated[float, Range()]
Programs = Annotated[int, Range(1)]

_PART = re.compile("[A-Z][A-Z_]*")


@dataclass(frozen=True, slots=True)
class Form:
    """One form of an option's text."""

    spelling: str
    """How it is written. Words in capitals are numbers, and what stands in brackets may be missing."""
    types: tuple[Any, ...] = ()
    """The types of the numbers, with their ranges."""
    words: str = ""
    """What the numbers are, if their ranges do not say it."""
    holds: Callable[..., bool] = lambda *numbers: True
    """What must be true of the numbers together."""

    @property
    def name(self) -> str:
        """The word at the beginning of the text; empty: it begins with a number."""
        return re.split(r"\W|[A-Z]", self.spelling)[0]

    def read(self, text: str) -> list[Any] | None:
        """Return the numbers; None: the text has another form, or a number is out of range."""
        patterns = ("(0|[1-9][0-9]*)" if get_args(kind)[0] is int else "([^:]+)" for kind in self.types)
        pattern = _PART.sub(lambda part: next(patterns), self.spelling.replace("[", "(?:").replace("]", ")?"))
        found = re.fullmatch(pattern, text)
        if found is None:
            return None
        given = [(number_in(each), kind) for each, kind in zip(found.groups(), self.types, strict=True) if each]
        try:
            numbers = [check("", number, kind, as_text=True) for number, kind in given]
        except LimitError:
            return None
        return numbers if self.holds(*numbers) else None

    @property
    def description(self) -> str:
        ranges = zip(_PART.findall(self.spelling), map(described, self.types), strict=True)
        words = self.words or ", ".join(f"{name} {each}" if self.name else each for name, each in ranges)
        return ", ".join(filter(None, (self.name and self.spelling, words)))


@dataclass(frozen=True, slots=True)
class Forms(Limit):
    """All forms of an option's text."""

    option: str = ""
    forms: tuple[Form, ...] = ()

    def read(self, text: str) -> tuple[str, list[Any]]:
        """Return the spelling of the text's form, and the numbers in the text.

        Raises:
            OptionError: the text has none of the forms.
        """
        for form in self.forms:
            if (numbers := form.read(text)) is not None:
                return form.spelling, numbers
        raise OptionError(f"{self.option} {text}: {self.message(text)}")

    def message(self, value: Any) -> str:
        """Return the end of the error message: the form of this name, or all forms."""
        name, names = str(value).partition(":")[0], [form.name for form in self.forms]
        if name in filter(None, names):
            return f"expected {self.forms[names.index(name)].description}"
        if "" in names:
            return f"expected {', or '.join(form.description for form in self.forms)}"
        spellings = sorted((form.spelling for form in self.forms), key=lambda spelling: spelling == "none")
        return f"{near(name, names)}there are {', '.join(spellings)}"


def _forms(option: str, *forms: Form) -> Forms:
    names = tuple(form.name for form in forms if form.read(form.name) is not None)
    return Forms(lambda text: any(form.read(text) is not None for form in forms), "", names, option, forms)


ARRIVALS = _forms(
    "--arrivals",
    Form("poisson"),
    Form("constant"),
    Form("gamma:CV", (Factor,)),
    Form("ramp:FACTOR", (Annotated[float, Range(1, 1e6, above=True)],)),
    Form("recorded[:SPEED]", (Factor,)),
    Form("concurrency:N[:RAMP_S]", (Programs, Amount), "a number of programs, and seconds"),
    Form("steps:N[:PAUSE_S]", (Programs, Amount), "a number of programs, and seconds"),
)
_SHARES = "two shares of a program's turns, such as 0.25:0.75"
START_WITHIN = _forms("--start-within", Form("LOW:HIGH", (Share, Share), _SHARES, lambda low, high: low <= high))
_TWO_TIMES = "a share from 0 to 1, the short time below the long one"
TOOL_TIMES = _forms(
    "--tool-times",
    Form("recorded"),
    Form("constant:SECONDS", (Seconds,)),
    Form("bimodal:SHARE:SHORT_S:LONG_S", (Share, Seconds, Seconds), _TWO_TIMES, lambda _, short, long: short < long),
    Form("shift:FACTOR", (Annotated[float, Range(0, MOST_S, above=True)],)),
    Form("hang:SHARE[:SECONDS]", (Share, Seconds)),
)
HINTS = _forms(
    "--hints",
    Form("none"),
    Form("tool"),
    Form("tool_s"),
    Form("kv_ttl[:SECONDS]", (Annotated[float, Range(0, MAX_HINT_S, above=True)],), "above 0 and at most a day"),
)
HINT_ERROR = _forms(
    "--hint-error", Form("SIGMA", (Annotated[float, Range(0, 10)],)), Form("adversarial[:SHARE[:silent]]", (Share,))
)
_PROGRAMS = Form("N", (Annotated[int, Range()],), "a number of programs (10)")
_TIME = Form("Ns", (Amount,), "seconds (60s)")
_REQUESTS = Form("Nr", (Annotated[int, Range(1, 999_999)],), "requests of a closed loop (11r)")
WARM_UP = _forms("--warm-up", _PROGRAMS, _TIME, _REQUESTS)
COOL_DOWN = _forms("--cool-down", _PROGRAMS, _TIME, Form(LANES))
UNTIL = _forms("--until", Form("N%", (Annotated[float, Range(above=True)],), "a share above 0, such as 3%"))
