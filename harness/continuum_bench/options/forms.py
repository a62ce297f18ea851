"""Texts of options that have forms of their own, such as ``gamma:CV``: how each is written, and the range of its parts.

The forms of an option are part of its annotation, like a range. So every text is checked before anything starts, and an
error says the form that was meant, or all forms that there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from continuum_traces.names import near
from continuum_traces.schema import LANES, REQUESTS
from continuum_traces.wire import MAX_HINT_S

from continuum_bench.errors import OptionError
from continuum_bench.options.declare import MOST, MOST_S, Limit, number_in

LEAST, LARGEST = 1e-6, 1e6
"""Of factors and coefficients."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a form: a number in a range, or a word."""

    name: str
    low: float = 0.0
    high: float = MOST
    above: bool = False
    """The number is above ``low``."""
    whole: bool = False
    unit: str = ""
    """What stands behind the number."""
    word: re.Pattern[str] | None = None
    """The part is no number, but a word like this."""

    def read(self, text: str) -> float | str | None:
        """Return the value; None: the text is none."""
        if self.word is not None:
            return text if self.word.fullmatch(text) else None
        number = number_in(text.removesuffix(self.unit)) if text.endswith(self.unit) else -1.0
        if not self.low <= number <= self.high or (self.above and number == self.low):
            return None
        return (int(number) if number.is_integer() else None) if self.whole else number

    @property
    def limits(self) -> str:
        if self.word is not None:
            return ""
        if self.above:
            return f"{self.name} above {self.low:g}, at most {self.high:g}"
        return f"{self.name} from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Form:
    """One form of an option's text: a name, and its parts after colons."""

    name: str
    parts: tuple[Part, ...] = ()
    optional: int = 0
    """Number of parts at the end that may be missing."""
    bare: bool = False
    """The text has only the parts, not the name."""
    words: str = ""
    """What the parts are, instead of their limits."""
    holds: Callable[..., bool] = lambda *values: True
    """What must be true of the parts together."""

    def read(self, text: str) -> list[Any] | None:
        """Return the values of the parts; None: the text has another form, or a value is out of range."""
        name, *given = [self.name, *text.split(":")] if self.bare else text.split(":")
        if name != self.name or not len(self.parts) - self.optional <= len(given) <= len(self.parts):
            return None
        values = [part.read(each) for part, each in zip(self.parts, given, strict=False)]
        return values if None not in values and self.holds(*values) else None

    @property
    def spelling(self) -> str:
        names = [] if self.bare else [self.name]
        names += [part.name for part in self.parts]
        needed = len(names) - self.optional
        return ":".join(names[:needed]) + "".join(f"[:{name}" for name in names[needed:]) + "]" * self.optional

    @property
    def description(self) -> str:
        limits = self.words or ", ".join(part.limits for part in self.parts if part.limits)
        return limits if self.bare else ", ".join(filter(None, (self.spelling, limits)))


@dataclass(frozen=True, slots=True)
class Forms(Limit):
    """All forms of an option's text."""

    option: str = ""
    forms: tuple[Form, ...] = ()

    def read(self, text: str) -> tuple[str, list[Any]]:
        """Return the name of the text's form, and the values of its parts.

        Raises:
            OptionError: the text has none of the forms.
        """
        for form in self.forms:
            if (values := form.read(text)) is not None:
                return form.name, values
        raise OptionError(f"{self.option} {text}: {self.message(text)}")

    def message(self, value: Any) -> str:
        """Return the end of the error message: the form of this name, or all forms."""
        name = str(value).partition(":")[0]
        meant = [form for form in self.forms if form.name == name and not form.bare]
        if meant or any(form.bare for form in self.forms):
            return f"expected {', or '.join(form.description for form in meant or self.forms)}"
        spellings = sorted((form.spelling for form in self.forms), key=lambda spelling: spelling == "none")
        return f"{near(name, (form.name for form in self.forms))}there are {', '.join(spellings)}"


def _forms(option: str, *forms: Form) -> Forms:
    names = tuple(form.name for form in forms if not form.bare and form.optional == len(form.parts))
    return Forms(lambda text: any(form.read(text) is not None for form in forms), "", names, option, forms)


_SHARE = Part("SHARE", high=1)
_SECONDS = Part("SECONDS", high=MOST_S)
_N = Part("N", low=1, whole=True)

ARRIVALS = _forms(
    "--arrivals",
    Form("poisson"),
    Form("constant"),
    Form("gamma", (Part("CV", LEAST, LARGEST),)),
    Form("ramp", (Part("FACTOR", 1, LARGEST, above=True),)),
    Form("recorded", (Part("SPEED", LEAST, LARGEST),), optional=1),
    Form("concurrency", (_N, Part("RAMP_S")), optional=1, words="a number of programs, and seconds"),
    Form("steps", (_N, Part("PAUSE_S")), optional=1, words="a number of programs, and seconds"),
)
START_WITHIN = _forms(
    "--start-within",
    Form(
        "shares",
        (Part("LOW", high=1), Part("HIGH", high=1)),
        bare=True,
        words="two shares of a program's turns, such as 0.25:0.75",
        holds=lambda low, high: low <= high,
    ),
)
TOOL_TIMES = _forms(
    "--tool-times",
    Form("recorded"),
    Form("constant", (_SECONDS,)),
    Form(
        "bimodal",
        (_SHARE, Part("SHORT_S", high=MOST_S), Part("LONG_S", high=MOST_S)),
        words="a share from 0 to 1, the short time below the long one",
        holds=lambda share, short_s, long_s: short_s < long_s,
    ),
    Form("shift", (Part("FACTOR", 0, MOST_S, above=True),)),
    Form("hang", (_SHARE, _SECONDS), optional=1),
)
HINTS = _forms(
    "--hints",
    Form("none"),
    Form("tool"),
    Form("tool_s"),
    Form("kv_ttl", (Part("SECONDS", 0, MAX_HINT_S, above=True),), optional=1, words="above 0 and at most a day"),
)
HINT_ERROR = _forms(
    "--hint-error",
    Form("noise", (Part("a number", high=10),), bare=True),
    Form("adversarial", (_SHARE, Part("silent", word=re.compile("silent"))), optional=2),
)
_PROGRAMS = Form("programs", (Part("N", whole=True),), bare=True, words="a number of programs (10)")
_TIME = Form("seconds", (Part("N", unit="s"),), bare=True, words="seconds (60s)")
WARM_UP = _forms(
    *("--warm-up", _PROGRAMS, _TIME),
    Form("requests", (Part("N", word=REQUESTS),), bare=True, words="requests of a closed loop (11r)"),
)
COOL_DOWN = _forms("--cool-down", _PROGRAMS, _TIME, Form(LANES))
UNTIL = _forms(
    "--until", Form("percent", (Part("N", above=True, unit="%"),), bare=True, words="a share above 0, such as 3%")
)
