"""Every policy by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from typing import Any, get_type_hints

from continuum_server.policy.autellix import Autellix
from continuum_server.policy.base import Policy
from continuum_server.policy.bounds import OracleSrpt, OracleTtl, OracleWorkingSet
from continuum_server.policy.facts import Machine
from continuum_server.policy.infercept import InferCept, InferCeptOracle
from continuum_server.policy.order import ProgramFcfs
from continuum_server.policy.published import ContinuumFixed, ContinuumV1
from continuum_server.policy.thunderagent import ThunderAgent
from continuum_server.policy.ttl import Continuum, StaticTtl
from continuum_server.policy.working_set import WorkingSet

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
    """Options checked against the policy's own; numbers may come as text (from a command line)."""
    hints = get_type_hints(policy_type.options_type)
    known = {f.name: hints[f.name] for f in fields(policy_type.options_type)}
    values = {name: _read_option(policy_type.name, name, value, known) for name, value in options.items()}
    try:
        policy_type.options_type(**values)
    except ValueError as error:
        raise PolicyError(f"policy {policy_type.name!r}: option {error}") from error
    return values


def _read_option(policy: str, name: str, value: Any, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise PolicyError(f"policy {policy!r} has no option {name!r}; it has: {', '.join(known) or 'none'}")
    hint = known[name]
    kinds = getattr(hint, "__args__", (hint,))
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if type(None) in kinds:
            return None
    elif (read := _convert(value, kinds)) is not None:
        if isinstance(read, str) or (isfinite(read) and read >= 0):
            return read
        raise PolicyError(f"policy {policy!r}: option {name} = {value}: must be finite and not negative")
    wanted = " or ".join(kind.__name__.replace("NoneType", "none") for kind in kinds)
    raise PolicyError(f"policy {policy!r}: option {name} = {value!r} is not {wanted}")


def _convert(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in (int, float, str):
        if kind in kinds:
            try:
                return kind(value)
            except (TypeError, ValueError):
                continue
    return None
