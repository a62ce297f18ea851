"""Reads ``--policy`` and ``--policy-option``. A policy's options apply to its ``+offload`` arm too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from continuum_server.policy.registry import POLICIES, find_policy, read_options, split_arm
from continuum_server.vllm_plugin.statistics_files import read_statistics
from continuum_traces.names import which

from continuum_bench.errors import OptionError


def arms_of(given: Sequence[str]) -> list[str]:
    """Return the names in ``--policy A,B --policy C``, each once.

    Raises:
        OptionError: there is no name.
        PolicyError: a policy does not exist.
    """
    names = list(dict.fromkeys(part.strip() for item in given for part in item.split(",") if part.strip()))
    if not names:
        raise OptionError(f"--policy: names no policy; {which('', POLICIES)}")
    for name in names:
        find_policy(name)
    return names


def read_policy_options(given: Sequence[str], policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the options in texts of the form ``POLICY.OPTION=VALUE``, by arm.

    Raises:
        OptionError: a text has another form, or its policy is not in this run.
        PolicyError: a policy is unknown or does not have the option.
    """
    raw: dict[str, dict[str, Any]] = {}
    for text in given:
        target, equals, value = text.partition("=")
        policy, dot, option = target.rpartition(".")
        if not (equals and dot):
            raise OptionError(f"--policy-option {text}: expected POLICY.OPTION=VALUE")
        arms = [arm for arm in policies if policy in (arm, split_arm(arm)[0])]
        if not arms:
            raise OptionError(f"--policy-option {text}: policy {policy!r} is not in this run ({', '.join(policies)})")
        for arm in arms:
            raw.setdefault(arm, {})[option] = value
    return {arm: checked_options(arm, values) for arm, values in raw.items()}


def checked_options(arm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an arm's policy. A file of statistics that they name is read once, to check it.

    Raises:
        PolicyError: the policy is unknown or does not have an option.
        StatisticsError: the file of statistics is missing or has another format.
    """
    policy = find_policy(arm)
    options = read_options(policy, given)
    if options.get("statistics"):
        read_statistics(options["statistics"], policy.name)
    return options
