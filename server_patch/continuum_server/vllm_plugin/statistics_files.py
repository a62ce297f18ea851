"""Tool statistics of earlier runs, from the files that a policy's ``statistics`` option names."""

from __future__ import annotations

from pathlib import Path

from continuum_traces.run_dir import RunDirError, read_json

from continuum_server.policy.base import Policy
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.vllm_plugin.versions import PluginError

FILE = "tool_statistics.json"
"""Its name in a run directory."""


class StatisticsError(PluginError):
    """A file of statistics that cannot be used; the message names it."""


def load_statistics(policy: Policy) -> None:
    """Give the policy what its ``statistics`` option names: files, or run directories, several merged.

    Raises:
        StatisticsError: a file that is missing or of another form.
    """
    named = getattr(policy.options, "statistics", None)
    if not named:
        return
    paths = [Path(name.strip()) for name in named.split(",") if name.strip()]
    files = [path / FILE if path.is_dir() else path for path in paths]
    try:
        policy.import_statistics(merge_statistics([read_json(file) for file in files]))
    except (RunDirError, ValueError) as error:
        raise StatisticsError(f"policy {policy.name!r}: option statistics = {named}: {error}") from error
