"""``--policy-option POLICY.OPTION=VALUE``, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continuum_server.policy.catalog import find_policy, read_options

from continuum_bench.workload import BenchError


def read_policy_options(given: Sequence[str], policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """``POLICY.OPTION=VALUE`` texts, checked.

    Raises:
        BenchError, PolicyError: a text of another form, a policy that does not run, an option it lacks.
    """
    raw: dict[str, dict[str, Any]] = {}
    for text in given:
        target, equals, value = text.partition("=")
        policy, dot, option = target.partition(".")
        if not (equals and dot):
            raise BenchError(f"--policy-option {text}: expected POLICY.OPTION=VALUE")
        if policy not in policies:
            raise BenchError(f"--policy-option {text}: policy {policy!r} is not in this run ({', '.join(policies)})")
        raw.setdefault(policy, {})[option] = value
    return {policy: read_options(find_policy(policy), values) for policy, values in raw.items()}
