"""The folder of files that can be deleted at any time, because they are made again when needed."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/continuum`` or ``~/.cache/continuum``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "continuum"
