"""What an agent changed in its folder, by git."""

from __future__ import annotations

import subprocess


def head_of(workspace: str) -> str:
    """The commit that the folder is at."""
    return _git(workspace, "rev-parse", "HEAD").strip()


def patch_of(workspace: str, base: str) -> str:
    """The difference from the commit ``base``, with changes that are not committed."""
    _git(workspace, "add", "-A", "--", ".", ":(exclude,glob)**/__pycache__/**")
    return _git(workspace, "diff", "--cached", "--no-color", "--no-ext-diff", "--binary", base)


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "surrogateescape")
