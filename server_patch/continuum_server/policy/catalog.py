"""Policies by name: our own in ``rules/``, and users' by entry point or as ``module:Class``."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
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
from continuum_server.policy.limits import LimitError, check, hints_of, is_optional, is_plain, plain_type

ENTRY_POINTS = "continuum.policies"
"""Entry points of this group are policies of installed packages: ``NAME = "my_package.module:Class"``."""
OFFLOAD = "+offload"
"""Behind a policy's name: the arm of an experiment that runs it with tiers below GPU memory."""


class PolicyError(ValueError):
    """A policy that is unknown or cannot be used, or an option it lacks; the message says what exists."""


def _policies_in(module: ModuleType) -> Iterator[type[Policy]]:
    """Policies that the module itself defines."""
    for value in vars(module).values():
        if inspect.isclass(value) and issubclass(value, Policy) and value.__module__ == module.__name__:
            yield value


def _our_policies() -> dict[str, type[Policy]]:
    """All policies in ``rules/``: stock vLLM first, bounds last."""
    modules = [import_module(f"{rules.__name__}.{found.name}") for found in pkgutil.iter_modules(rules.__path__)]
    policies = [policy for module in modules for policy in _policies_in(module)]
    policies.sort(key=lambda policy: (policy.label == "bound", policy.name != "vllm", policy.name))
    return {policy.name: policy for policy in policies}


POLICIES = _our_policies()


def split_arm(arm: str) -> tuple[str, bool]:
    """``continuum+offload`` -> (``continuum``, True); a plain policy -> (policy, False)."""
    return arm.removesuffix(OFFLOAD), arm.endswith(OFFLOAD)


def find_policy(arm: str) -> type[Policy]:
    """The policy of an arm: ``continuum`` and ``continuum+offload`` are one.

    Raises:
        PolicyError: no such policy, or one that cannot be used.
    """
    return _policy_class(split_arm(arm)[0])


def is_policy(name: str) -> bool:
    """Whether a policy has this name; arms with ``+offload`` and labels of a sweep are none."""
    try:
        _policy_class(name)
    except PolicyError:
        return False
    return True


def make_policy(name: str, options: Mapping[str, Any], machine: Machine) -> Policy:
    """The policy of that name with these options. ``+offload`` is no part of a policy's name.

    Raises:
        PolicyError: unknown name or option, or a value of the wrong type.
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
    found = installed.get(name, ())
    if len(found) + (name in POLICIES) > 1:
        raise PolicyError(f"policy name {name!r} is taken: {', '.join(map(_origin, found))} needs another name")
    if name in POLICIES:
        return POLICIES[name]
    if not found:
        names = ", ".join([*POLICIES, *installed])
        near = _near(name, [*POLICIES, *installed])
        raise PolicyError(f"unknown policy {name!r}; {near}there are: {names}; each also as NAME{OFFLOAD}")
    policy = _users_policy(found[0].value, f"{name} ({_origin(found[0])})")
    if policy.name != name:
        raise PolicyError(f"policy {name}: {_origin(found[0])} has the name {policy.name!r}; both must be the same")
    return policy


def _near(name: str, known: Iterable[str]) -> str:
    """``did you mean continuum? ``, or nothing."""
    return "".join(f"did you mean {each}? " for each in get_close_matches(name, list(known), n=1))


@cache
def _installed_policies(_path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Entry points of installed packages by name, read once for each state of ``sys.path``."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of package {point.dist.name}" if point.dist is not None else point.value


def _users_policy(path: str, shown: str) -> type[Policy]:
    """The class at ``my_package.module:Class``.

    Raises:
        PolicyError: it cannot be imported, is no policy, or lacks a name or options that can be read.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # the module is the user's: whatever it raises is told in one line
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PolicyError(f"policy {shown}: cannot import it: {reason}") from error
    if not (inspect.isclass(found) and issubclass(found, Policy)):
        raise PolicyError(f"policy {shown}: {name} is no class on continuum_server.policy.base.Policy")
    if not re.fullmatch(r"[\w-]+", str(vars(found).get("name", ""))):
        raise PolicyError(f'policy {shown}: {name} needs a name of its own: name: ClassVar[str] = "my-policy"')
    if found.name in POLICIES:
        raise PolicyError(f"policy {shown}: the name {found.name!r} of {name} is taken by a policy of Continuum")
    _check_options_type(found, shown)
    return found


def _check_options_type(policy: type[Policy], shown: str) -> None:
    where = f"policy {shown}: options_type {policy.options_type.__name__}"
    if not is_dataclass(policy.options_type):
        raise PolicyError(f"{where} is no dataclass")
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
    """Options checked against the policy's own; numbers may come as text (from a command line).

    Raises:
        PolicyError: an option that the policy lacks, or a value of another type or out of range.
    """
    known = hints_of(policy_type.options_type)
    where = f"policy {policy_type.name!r}"
    for name in options:
        if name not in known:
            near = _near(name, known)
            raise PolicyError(f"{where} has no option {name!r}; {near}it has: {', '.join(known) or 'none'}")
    try:
        values = {name: _read_option(name, value, known[name]) for name, value in options.items()}
        policy_type.options_type(**values)
    except ValueError as error:
        raise PolicyError(f"{where}: option {error}") from error
    return values


def _read_option(name: str, value: Any, hint: Any) -> Any:
    """The value in the type of the option. ``none`` as text is None, if the option may be None."""
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
    """The number or truth value that a text is, if one is wanted; otherwise the text itself."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        return text
