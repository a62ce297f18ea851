"""The hints that the programs of a workload send (``--hints``), and how wrong they are (``--hint-error``).

Hints are part of the workload. They depend only on the programs, the order of their arrival and the seed, so they are
the same for every policy, in the virtual engine and on a server. A kind of hint is a function in ``KINDS``, or
``kv_ttl:S``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, Tags
from continuum_traces.wire import MAX_HINT_S

from continuum_bench.options.forms import HINT_ERROR, HINTS

NONE = "none"


@dataclass(frozen=True, slots=True)
class Noise:
    """Numbers are multiplied by exp(``sigma`` * z), z from a standard normal distribution: with 0.5 two thirds of them
    lie between 0.61 and 1.65 times the truth. A name is wrong with probability ``sigma``, at most 1. 0: the truth."""

    rng: random.Random
    sigma: float

    def seconds(self, truth_s: float) -> float:
        return truth_s * math.exp(self.rng.gauss(0.0, self.sigma)) if self.sigma > 0.0 else truth_s

    def name(self, truth: str) -> str:
        return f"not-{truth}" if self.rng.random() < self.sigma else truth


class Lies:
    """Hints that are as harmful as possible: a hundred times the true value of a short time, and a hundredth of a
    long one. The server then holds the wrong programs' KV. Names are wrong too."""

    SHORT_S = 5.0

    def seconds(self, truth_s: float) -> float:
        return min(MAX_HINT_S, 100.0 * truth_s) if truth_s < self.SHORT_S else truth_s / 100.0

    def name(self, truth: str) -> str:
        return f"not-{truth}"


Errors = Noise | Lies
"""How a client's hints differ from the truth."""
Kind = Callable[[Program, int, Errors], Mapping[str, Any]]
"""Returns the fields of ``Tags`` that a client sends with the turn of this index; an empty mapping: no hint."""


def _tool(program: Program, index: int, errors: Errors) -> dict[str, Any]:
    """Return the name of the tool that the turn will call."""
    tool = program.turns[index].slowest_tool
    return {} if tool is None or index == len(program.turns) - 1 else {"pred_tool": errors.name(tool.name)}


def _tool_s(program: Program, index: int, errors: Errors) -> dict[str, Any]:
    """Return the name and the seconds of the next tool, and of the tool that ran before the turn."""
    hints = _tool(program, index, errors)
    if hints:
        hints["pred_tool_s"] = errors.seconds(_busy_s(program, index))
    ran = program.turns[index - 1].slowest_tool if index > 0 else None
    if ran is not None:
        hints["last_func_call"] = errors.name(ran.name)
        hints["last_tool_duration_s"] = errors.seconds(_busy_s(program, index - 1))
    return hints


def _kv_ttl(program: Program, index: int, errors: Errors) -> dict[str, Any]:
    """Ask for a soft hold of the KV cache, 10% longer than until the next turn arrives."""
    if index == len(program.turns) - 1:
        return {}
    return {"kv_ttl_s": min(MAX_HINT_S, 1.1 * errors.seconds(program.turns[index].gap_s))}


def _retention(wished_s: float, program: Program, index: int, errors: Errors) -> dict[str, Any]:
    """Ask for the same soft hold after every turn, as agents do whose user chose a time. They know no last turn."""
    return {"kv_ttl_s": min(MAX_HINT_S, errors.seconds(wished_s))}


def _busy_s(program: Program, index: int) -> float:
    """Return the seconds until the last tool of the turn returns."""
    tool = program.turns[index].slowest_tool
    return tool.end_s if tool is not None else 0.0


KINDS: Mapping[str, Kind] = {
    "tool": _tool,
    "tool_s": _tool_s,
    "kv_ttl": _kv_ttl,
}
"""Kinds of hints by the name that ``--hints`` takes."""


def hint_kind(spec: str) -> Kind | None:
    """Read ``--hints``: a name in ``KINDS``, or ``kv_ttl:S``. None: no hints.

    Raises:
        OptionError: the text has another form.
    """
    _, wished_s = HINTS.read(spec)
    return partial(_retention, *wished_s) if wished_s else KINDS.get(spec)


@dataclass(frozen=True, slots=True)
class HintError:
    """The errors of hints, as ``--hint-error`` describes them."""

    sigma: float = 0.0
    adversaries: float = 0.0
    """Share of the programs that lie (``Lies``)."""
    silent: bool = False
    """The other programs send no hints."""


def hint_error(spec: str) -> HintError:
    """Read ``--hint-error``.

    E                          numbers are multiplied by exp(E * z), z from a standard normal distribution
    adversarial[:SHARE]        all programs lie (``Lies``), or this share of them; the others tell the truth
    adversarial:SHARE:silent   as above, but the others send no hints

    Raises:
        OptionError: the text has another form.
    """
    form, numbers = HINT_ERROR.read(spec)
    if form == "SIGMA":
        return HintError(*numbers)
    return HintError(adversaries=numbers[0] if numbers else 1.0, silent=spec.endswith(":silent"))


def with_hints(jobs: Sequence[Job], kind: Kind, error: HintError, seed: int) -> list[Job]:
    """Return the jobs, which must be in the order of their arrival, with hints."""
    return [
        replace(job, hints=_hints_of(job.program, kind, _errors_of(number, error, seed)))
        for number, job in enumerate(jobs)
    ]


def lies(number: int, error: HintError) -> bool:
    """Return whether the ``number``-th program to arrive lies. These programs are spread evenly."""
    return math.floor((number + 1) * error.adversaries) > math.floor(number * error.adversaries)


def _errors_of(number: int, error: HintError, seed: int) -> Errors | None:
    """Return the errors of the ``number``-th program to arrive; None: the program sends no hints."""
    if lies(number, error):
        return Lies()
    return None if error.silent else Noise(random.Random(f"{seed}/{number}"), error.sigma)


def _hints_of(program: Program, kind: Kind, errors: Errors | None) -> tuple[Tags, ...]:
    if errors is None:
        return ()
    return tuple(Tags(**kind(program, index, errors)) for index in range(len(program.turns)))
