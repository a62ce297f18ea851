"""Read the changes that an agent made in its folder, by git."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DIFF = ("diff", "--cached", "--no-color", "--no-ext-diff", "--no-textconv", "--binary")


def head_of(workspace: str) -> str:
    """Return the commit that is checked out in the folder."""
    return _git(workspace, "rev-parse", "HEAD").decode().strip()


def patch_of(workspace: str, base: str) -> str:
    """Return the difference between the commit ``base`` and the folder, with changes that are not committed.

    A file that is not UTF-8 is in it as a binary patch, which ``git apply`` takes: JSON holds no other bytes.
    """
    _git(workspace, "add", "-A", "--", ".", ":(exclude,glob)**/__pycache__/**")
    try:
        return _git(workspace, *_DIFF, base).decode("utf-8")
    except UnicodeDecodeError:
        names = _git(workspace, "diff", "--cached", "--name-only", "--no-renames", "-z", base).split(b"\0")[:-1]
        return "".join(_patch_of_file(workspace, base, name) for name in names)


def _patch_of_file(workspace: str, base: str, name: bytes) -> str:
    one = (base, "--", b":(top,literal)" + name)
    try:
        return _git(workspace, *_DIFF, *one).decode("utf-8")
    except UnicodeDecodeError:
        with _all_binary(workspace):
            return _git(workspace, *_DIFF, *one).decode("utf-8")


@contextmanager
def _all_binary(workspace: str) -> Iterator[None]:
    """Let git treat every file as binary, whatever the repository's own attributes say."""
    place = _git(workspace, "rev-parse", "--git-path", "info/attributes").decode().strip()
    file = Path(workspace, place)
    before = file.read_bytes() if file.exists() else None
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"* -diff\n")
    try:
        yield
    finally:
        file.unlink() if before is None else file.write_bytes(before)


def _git(folder: str, *arguments: str | bytes) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout
