"""Read the changes that an agent made in its folder, by git."""

from __future__ import annotations

import subprocess


def head_of(workspace: str) -> str:
    """Return the commit that is checked out in the folder."""
    return _git(workspace, "rev-parse", "HEAD").strip()


def patch_of(workspace: str, base: str) -> str:
    """Return the difference between the commit ``base`` and the folder, with changes that are not committed."""
    _git(workspace, "add", "-A", "--", ".", ":(exclude,glob)**/__pycache__/**")
    return _git(workspace, "diff", "--cached", "--no-color", "--no-ext-diff", "--binary", base)


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "surrogateescape")
