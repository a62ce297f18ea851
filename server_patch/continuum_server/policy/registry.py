"""Policies by name: those in ``rules/`` and its folders, and users' policies by entry point or as ``module:Class``."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from continuum_server.policy import rules
from continuum_server.policy.base import Policy
from continuum_server.policy.facts import Machine
from continuum_server.policy.limits import check, hints_of, is_optional, is_plain

ENTRY_POINTS = "continuum.policies"
"""Entry points of this group are policies of installed packages: ``NAME = "my_package.module:Class"``."""
OFFLOAD = "+offload"
"""Suffix of an experiment's arm that runs the policy with tiers below GPU memory."""
ONLY_IN_REPLAYS = "works only in replays, because it reads future turns from the trace"
"""What no server can do with a bound."""


class PolicyError(ValueError):
    """A policy is unknown or cannot be used, or has no such option. The message lists the existing ones."""


class UnknownPolicy(PolicyError):
    """No policy has this name. ``names``: those that there are."""

    def __init__(self, name: str, names: Sequence[str], more: str = "") -> None:
        super().__init__(f"unknown policy {name!r}; {_near(name, names)}there are: {', '.join(names)}{more}")


def _policies_in(module: ModuleType) -> Iterator[type[Policy]]:
    """Yield the policies that the module itself defines, without base classes."""
    for value in vars(module).values():
        is_own = inspect.isclass(value) and issubclass(value, Policy) and value.__module__ == module.__name__
        if is_own and not inspect.isabstract(value):
            yield value


def _our_policies() -> dict[str, type[Policy]]:
    """Import all policies in ``rules/`` and its folders. Stock vLLM is the first, bounds are the last."""
    names = [module.name for module in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}.")]
    policies = [policy for name in names for policy in _policies_in(import_module(name))]
    policies.sort(key=lambda policy: (policy.label == "bound", policy.name != "vllm", policy.name))
    return {policy.name: policy for policy in policies}


POLICIES = _our_policies()


def split_arm(arm: str) -> tuple[str, bool]:
    """Split ``continuum+offload`` into (``continuum``, True). Return (policy, False) for a policy alone."""
    return arm.removesuffix(OFFLOAD), arm.endswith(OFFLOAD)


def find_policy(arm: str) -> type[Policy]:
    """Return the policy of an arm, which is the same for ``continuum`` and ``continuum+offload``.

    Raises:
        PolicyError: the policy is unknown or cannot be used.
    """
    return _policy_class(split_arm(arm)[0])


def is_policy(name: str) -> bool:
    """Whether a policy has this name. Arms with ``+offload`` and labels of a sweep are not policies."""
    try:
        _policy_class(name)
    except PolicyError:
        return False
    return True


def servable() -> list[str]:
    """List the policies that a server can run: all but bounds."""
    return [*(name for name, policy in POLICIES.items() if policy.label != "bound"), *_installed_policies((*sys.path,))]


def make_policy(name: str, options: Mapping[str, Any], machine: Machine) -> Policy:
    """Create a policy with these options. ``name`` must not end with ``+offload``.

    Raises:
        PolicyError: an unknown name or option, or a value that is not allowed.
    """
    policy_type = _policy_class(name)
    return policy_type(machine, policy_type.options_type(**read_options(policy_type, options)))


# ------------------------------------------------------------------------------------------- users' policies


def _policy_class(name: str) -> type[Policy]:
    if ":" in name:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return _users_policy(name, name)
    installed = _installed_policies(tuple(sys.path))
    points = installed.get(name, ())
    if len(points) + (name in POLICIES) > 1:
        raise PolicyError(f"policy name {name!r} is taken: {', '.join(map(_origin, points))} needs another name")
    if name in POLICIES:
        return POLICIES[name]
    if not points:
        raise UnknownPolicy(name, [*POLICIES, *installed], f"; each also as NAME{OFFLOAD}")
    policy = _users_policy(points[0].value, f"{name} ({_origin(points[0])})")
    if policy.name != name:
        raise PolicyError(f"policy {name}: {_origin(points[0])} has the name {policy.name!r}; both must be the same")
    return policy


def _near(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean continuum? `` or an empty string."""
    return "".join(f"did you mean {match}? " for match in get_close_matches(name, list(names), n=1))


@cache
def _installed_policies(_path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of installed packages by name. They are read once for each value of ``sys.path``."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        points[point.name] = (*points.get(point.name, ()), point)
    return points


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of package {point.dist.name}" if point.dist is not None else point.value


def _users_policy(path: str, shown: str) -> type[Policy]:
    """Import the class at ``my_package.module:Class``.

    Raises:
        PolicyError: the class cannot be imported, is not a policy, or its name or options cannot be used.
    """
    module, _, name = path.partition(":")
    try:
        policy = getattr(import_module(module), name)
    except Exception as error:  # the user's module may raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(f"policy {shown}: cannot import it: {reason}") from error
    if not (inspect.isclass(policy) and issubclass(policy, Policy)):
        raise PolicyError(f"policy {shown}: {name} is not a subclass of continuum_server.policy.base.Policy")
    if not re.fullmatch(r"[\w-]+", str(vars(policy).get("name", ""))):
        raise PolicyError(f'policy {shown}: {name} needs a name of its own: name: ClassVar[str] = "my-policy"')
    if policy.name in POLICIES:
        raise PolicyError(f"policy {shown}: the name {policy.name!r} of {name} is taken by a policy of Continuum")
    _check_options_type(policy, shown)
    return policy


def _check_options_type(policy: type[Policy], shown: str) -> None:
    where = f"policy {shown}: options_type {policy.options_type.__name__}"
    if not is_dataclass(policy.options_type):
        raise PolicyError(f"{where} is not a dataclass")
    try:
        hints = hints_of(policy.options_type)
        policy.options_type()
    except (NameError, TypeError, ValueError) as error:
        raise PolicyError(f"{where}: {error}") from error
    for name, hint in hints.items():
        if not is_plain(hint):
            raise PolicyError(f"{where}: {name} is of type {hint}; an option is int, float, bool, str or a Literal")


# --------------------------------------------------------------------------------------------------- options


def read_options(policy_type: type[Policy], options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a policy's options, and convert numbers that are given as text on a command line.

    Raises:
        PolicyError: the policy has no such option, or a value is not allowed.
    """
    hints = hints_of(policy_type.options_type)
    where = f"policy {policy_type.name!r}"
    for name in options:
        if name in policy_type.gone:
            raise PolicyError(f"{where}: option {name!r} is gone: {policy_type.gone[name]}")
        if name not in hints:
            names = f"{_near(name, hints)}it has: {', '.join(hints) or 'none'}"
            raise PolicyError(f"{where} has no option {name!r}; {names}")
    try:
        values = {name: _read_option(name, value, hints[name]) for name, value in options.items()}
        policy_type.options_type(**values)
    except ValueError as error:
        raise PolicyError(f"{where}: option {error}") from error
    return values


def _read_option(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to the option's type. The text ``none`` is None, if the option may be None."""
    if isinstance(value, str) and value.lower() == "none" and is_optional(hint):
        return None
    return check(name, value, hint, as_text=isinstance(value, str))
