"""Where files are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/continuum`` or ``~/.cache/continuum``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "continuum"
