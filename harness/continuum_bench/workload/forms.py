"""Options of the form ``NAME:NUMBER:NUMBER``."""

from __future__ import annotations

from collections.abc import Mapping

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import number_in


def read_form(spec: str) -> tuple[str, list[float]]:
    """Return the name and the numbers after it; NaN for what is no number."""
    name, *given = spec.split(":")
    return name, [number_in(text) for text in given]


def refusal(option: str, spec: str, forms: Mapping[str, str]) -> BenchError:
    """Return the error of a spec that has none of these forms (by name: how it is written, then what it needs)."""
    name = spec.partition(":")[0]
    if name in forms:
        return BenchError(f"{option} {spec}: expected {forms[name]}")
    return BenchError(f"{option} {spec}: there are {', '.join(form.partition(',')[0] for form in forms.values())}")
