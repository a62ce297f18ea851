"""The style of an arm in figures: colour and mark by policy, fill and dash by tiers (``+offload``) or router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count

OFFLOAD = "+offload"
COLOURS = ("#7f7f7f", "#E69F00", "#56B4E9", "#0072B2", "#CC79A7", "#009E73", "#A0522D", "#D55E00")
"""Grey, brown, and the palette of Okabe and Ito, in the order of ``KNOWN``. Colour-blind readers can tell ``vllm``,
``continuum`` and ``working-set`` apart by colour alone, on white and on black; the others by mark and dash too."""
KNOWN = ("vllm", "program-fcfs", "static-ttl", "continuum", "autellix", "infercept", "thunderagent", "working-set")
"""Policies with the same colour and mark in every figure; other policies take styles that the figure does not use."""
MARKS = (
    "m-4,0c0,-5.3 8,-5.3 8,0c0,5.3 -8,5.3 -8,0z",
    "m-3.5,-3.5h7v7h-7z",
    "m0,-4.5l4.5,8h-9z",
    "m0,-5l4,5l-4,5l-4,-5z",
    "m0,4.5l4.5,-8h-9z",
    "m-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "m0,-2l2.5,-2.5l2,2l-2.5,2.5l2.5,2.5l-2,2l-2.5,-2.5l-2.5,2.5l-2,-2l2.5,-2.5l-2.5,-2.5l2,-2z",
    "m0,-5l1.3,3.2l3.5,.3l-2.7,2.3l.8,3.4l-2.9,-1.8l-2.9,1.8l.8,-3.4l-2.7,-2.3l3.5,-.3z",
)
"""Marks of points, as SVG paths around the point."""
DASHES = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 4 2 4")
"""Dashes of lines; the first is solid."""


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """The style of an arm in one figure. Up to 48 arms differ in colour and dash, and also in colour, mark and fill."""

    colour: str
    mark: int
    """Index in ``MARKS``."""
    is_open: bool
    """Whether only the edge of the mark or bar is drawn."""
    dash: int
    """Index in ``DASHES``."""


def arm_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """Return a different style for each arm of a figure.

    A policy without tiers is filled and solid; its ``+offload`` arm has the same colour and is open and dashed. Arms
    with different routers also share the colour of their policy.
    """
    parts = {name: _split(name) for name in names}
    free = (0, 4, 5, 6, 1, 2, 3, 7)  # a baseline that is not vllm is grey too
    policies = _numbers([policy for policy, _ in parts.values()], KNOWN, chain(free, count(len(COLOURS))))
    variants = _numbers([variant for _, variant in parts.values()], ("", OFFLOAD), count())
    per_colour = max(2, 1 + max(variants.values(), default=0))
    styles = {}
    for name, (policy, variant) in parts.items():
        number = policies[policy]
        turn = variants[variant] + per_colour * (number // len(COLOURS))  # counts the arms of this colour
        mark, colour = (number + turn // 2) % len(MARKS), COLOURS[number % len(COLOURS)]
        styles[name] = ArmStyle(colour, mark, turn % 2 == 1, turn % len(DASHES))
    return styles


def _split(name: str) -> tuple[str, str]:
    """``continuum+offload@affinity`` -> (``continuum``, ``+offload@affinity``)."""
    policy = name.partition("@")[0].removesuffix(OFFLOAD)
    return policy, name[len(policy) :]


def _numbers(names: Sequence[str], order: Sequence[str], others: Iterable[int]) -> dict[str, int]:
    """Return for each name its index in ``order``, or the first of the numbers ``others`` that no other name has."""
    numbers = {name: order.index(name) for name in names if name in order}
    free = (number for number in others if number not in numbers.values())
    for name in names:
        numbers[name] = numbers[name] if name in numbers else next(free)
    return numbers
