"""Patches of what agents left: text that is JSON's, and that git applies byte for byte."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from continuum_agents.patches import head_of, patch_of

LATIN_1 = "café\n".encode("latin-1")


def git(folder: Path, *arguments: str, given: str | None = None) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, input=given, text=True)


def repository(folder: Path, files: dict[bytes, bytes]) -> Path:
    folder.mkdir()
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "given")
    return folder


def write(folder: Path, files: dict[bytes, bytes]) -> None:
    for name, content in files.items():
        (folder / os.fsdecode(name)).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


GIVEN = {b"a.txt": b"a\n", b"old.txt": LATIN_1, b"kept.txt": LATIN_1 * 40, b"gone.txt": LATIN_1}


@pytest.mark.parametrize("attributes", [b"", b"*.txt text diff\n"])
def test_a_patch_with_files_that_are_not_utf_8(tmp_path: Path, attributes: bytes) -> None:
    given = GIVEN | ({b".gitattributes": attributes} if attributes else {})
    work, clean = repository(tmp_path / "work", given), repository(tmp_path / "clean", given)
    base = head_of(str(work))
    (work / "gone.txt").unlink()
    (work / "kept.txt").rename(work / "moved.txt")
    odd = {b"b [1] *.txt": LATIN_1, b"caf\xe9.txt": LATIN_1, "ü.txt".encode(): "ü\n".encode(), b"nul": b"\0\xe9"}
    write(work, odd | {b"a.txt": b"b\n", b"old.txt": LATIN_1 * 2})
    patch = patch_of(str(work), base)
    assert json.loads(json.dumps(patch).encode("ascii")).encode("utf-8")
    git(clean, "apply", "-", given=patch)
    assert contents(clean) == contents(work)
    assert "-a\n+b\n" in patch  # text stays readable
    assert not (work / ".git/info/attributes").exists()


def test_an_agent_s_own_attributes_stay(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", {b"a.txt": b"a\n"})
    base = head_of(str(work))
    (work / ".git/info").mkdir(exist_ok=True)
    (work / ".git/info/attributes").write_bytes(b"*.md diff\n")
    write(work, {b"a.txt": LATIN_1})
    assert "GIT binary patch" in patch_of(str(work), base)
    assert (work / ".git/info/attributes").read_bytes() == b"*.md diff\n"


def test_a_folder_without_changes_has_no_patch(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", GIVEN)
    assert patch_of(str(work), head_of(str(work))) == ""
