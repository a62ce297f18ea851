"""How an arm is drawn: colour and mark from its policy, fill and dash from its tiers (``+offload``) or router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OFFLOAD = "+offload"
COLOURS = ("#7f7f7f", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#B8A800")
"""Okabe and Ito's palette, grey first: told apart by colour-blind readers."""
KNOWN = ("vllm", "program-fcfs", "static-ttl", "continuum", "autellix", "infercept", "thunderagent", "working-set")
"""These policies have the same colour and mark in every figure; other policies take those a figure leaves free."""
MARKS = 8
"""Marks a drawing library must offer."""
DASHES = 6
"""Dashes it must offer, solid first."""


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """How one arm looks in one figure. Up to 48 arms differ in colour and dash, and also in colour, mark and fill."""

    colour: str
    mark: int
    """Which of the library's ``MARKS``."""
    is_open: bool
    """Only the mark's or the bar's edge is drawn."""
    dash: int
    """Which of the library's ``DASHES``."""


def arm_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """A style for each arm of a figure, no two alike.

    A plain policy is filled and solid, its ``+offload`` arm open and dashed in the same colour; arms behind several
    routers share their policy's colour likewise.
    """
    parts = {name: _split(name) for name in names}
    policies = _policy_numbers([policy for policy, _ in parts.values()])
    variants = _variant_numbers([variant for _, variant in parts.values()])
    per_colour = max(2, 1 + max(variants.values(), default=0))
    styles = {}
    for name, (policy, variant) in parts.items():
        number = policies[policy]
        turn = variants[variant] + per_colour * (number // len(COLOURS))  # the how-manieth of its colour
        mark, colour = (number + turn // 2) % MARKS, COLOURS[number % len(COLOURS)]
        styles[name] = ArmStyle(colour, mark, turn % 2 == 1, turn % DASHES)
    return styles


def _split(name: str) -> tuple[str, str]:
    """``continuum+offload@affinity`` -> (``continuum``, ``+offload@affinity``)."""
    policy = name.partition("@")[0].removesuffix(OFFLOAD)
    return policy, name[len(policy) :]


def _policy_numbers(policies: Sequence[str]) -> dict[str, int]:
    """Of each policy: its place in ``KNOWN``, or one that no other of the figure has."""
    numbers = {policy: KNOWN.index(policy) for policy in policies if policy in KNOWN}
    places = len(COLOURS)
    free = [n for i in range(places) if (n := (i + places // 2) % places) not in numbers.values()]
    others = [policy for policy in dict.fromkeys(policies) if policy not in KNOWN]
    return numbers | {policy: free[i] if i < len(free) else places + i - len(free) for i, policy in enumerate(others)}


def _variant_numbers(variants: Iterable[str]) -> dict[str, int]:
    """0 for a plain policy, 1 for tiers; routers take what the figure leaves free."""
    found = dict.fromkeys(variants)
    numbers = {variant: number for number, variant in enumerate(("", OFFLOAD)) if variant in found}
    free = [number for number in range(len(found) + 2) if number not in numbers.values()]
    return numbers | dict(zip([variant for variant in found if variant not in numbers], free, strict=False))
