"""The style of an arm in figures: colour and mark by policy, fill and dash by tiers (``+offload``) or router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OFFLOAD = "+offload"
COLOURS = ("#7f7f7f", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#B8A800")
"""Grey, then the palette of Okabe and Ito, which colour-blind readers can tell apart."""
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
    policies = _policy_numbers([policy for policy, _ in parts.values()])
    variants = _variant_numbers([variant for _, variant in parts.values()])
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


def _policy_numbers(policies: Sequence[str]) -> dict[str, int]:
    """Return for each policy its index in ``KNOWN``, or an index that no other policy of the figure has."""
    numbers = {policy: KNOWN.index(policy) for policy in policies if policy in KNOWN}
    places = len(COLOURS)
    free = [n for i in range(places) if (n := (i + places // 2) % places) not in numbers.values()]
    others = [policy for policy in dict.fromkeys(policies) if policy not in KNOWN]
    return numbers | {policy: free[i] if i < len(free) else places + i - len(free) for i, policy in enumerate(others)}


def _variant_numbers(variants: Iterable[str]) -> dict[str, int]:
    """Return 0 for a policy without tiers and 1 for ``+offload``; routers have numbers that the figure does not use."""
    names = dict.fromkeys(variants)
    numbers = {variant: number for number, variant in enumerate(("", OFFLOAD)) if variant in names}
    free = [number for number in range(len(names) + 2) if number not in numbers.values()]
    return numbers | dict(zip([variant for variant in names if variant not in numbers], free, strict=False))
