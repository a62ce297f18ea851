"""Every policy by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continuum_server.policy.base import Policy
from continuum_server.policy.facts import Machine
from continuum_server.policy.limits import LimitError, check, hints_of, is_optional, plain_type
from continuum_server.policy.order import ProgramFcfs
from continuum_server.policy.rules.autellix import Autellix
from continuum_server.policy.rules.bounds import OracleSrpt, OracleTtl, OracleWorkingSet
from continuum_server.policy.rules.infercept import InferCept, InferCeptOracle
from continuum_server.policy.rules.published import ContinuumFixed, ContinuumV1
from continuum_server.policy.rules.thunderagent import ThunderAgent
from continuum_server.policy.rules.ttl import Continuum, StaticTtl
from continuum_server.policy.rules.working_set import WorkingSet

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Policy,
        ProgramFcfs,
        StaticTtl,
        Continuum,
        ContinuumV1,
        ContinuumFixed,
        Autellix,
        InferCept,
        ThunderAgent,
        WorkingSet,
        OracleTtl,
        OracleSrpt,
        OracleWorkingSet,
        InferCeptOracle,
    )
}


OFFLOAD = "+offload"
"""Behind a policy's name: the arm of an experiment that runs it with tiers below GPU memory."""


class PolicyError(ValueError):
    """An unknown policy or option; the message lists what exists."""


def split_arm(arm: str) -> tuple[str, bool]:
    """``continuum+offload`` -> (``continuum``, True); a plain policy -> (policy, False)."""
    return arm.removesuffix(OFFLOAD), arm.endswith(OFFLOAD)


def make_policy(name: str, options: Mapping[str, Any], machine: Machine) -> Policy:
    """The policy of that name, which is no arm's: tiers are the engine's.

    Raises:
        PolicyError: unknown name or option, or a value of the wrong type.
    """
    if name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; there are: {', '.join(POLICIES)}")
    policy_type = POLICIES[name]
    return policy_type(machine, policy_type.options_type(**read_options(policy_type, options)))


def find_policy(arm: str) -> type[Policy]:
    """The policy of an arm: ``continuum`` and ``continuum+offload`` are one."""
    name, _ = split_arm(arm)
    if name not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; there are: {', '.join(POLICIES)}; each also as NAME{OFFLOAD}")
    return POLICIES[name]


def read_options(policy_type: type[Policy], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options checked against the policy's own; numbers may come as text (from a command line).

    Raises:
        PolicyError: an option that the policy lacks, or a value of another type or out of range.
    """
    known = hints_of(policy_type.options_type)
    where = f"policy {policy_type.name!r}"
    for name in options:
        if name not in known:
            raise PolicyError(f"{where} has no option {name!r}; it has: {', '.join(known) or 'none'}")
    try:
        values = {name: _read_option(name, value, known[name]) for name, value in options.items()}
        policy_type.options_type(**values)
    except ValueError as error:
        raise PolicyError(f"{where}: option {error}") from error
    return values


def _read_option(name: str, value: Any, hint: Any) -> Any:
    """The value as its own type, from a number's or none's text too."""
    kind = plain_type(hint)
    if isinstance(value, str) and value.lower() == "none" and is_optional(hint):
        return None
    read = _from_text(value, kind) if isinstance(value, str) else value
    try:
        check(name, read, hint)
    except LimitError as error:
        raise LimitError(name, value, error.allowed) from error
    return float(read) if kind is float and read is not None else read


def _from_text(text: str, kind: Any) -> Any:
    """The number that a text is; the text itself where none is wanted, or where it is none."""
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        return text
