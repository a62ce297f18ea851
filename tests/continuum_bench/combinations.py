"""Draws options together, and what must hold of a command that a user made of them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench_cli import bench
from click.testing import Result
from continuum_bench.options.declare import OptionGroup, declared
from hypothesis import strategies as st

Values = Mapping[str, Sequence[str]]
"""The values that are drawn for each option; an empty one is a switch's."""


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


def words_of(values: Values, most: int = 3) -> st.SearchStrategy[list[str]]:
    """Draws up to so many options, each with a value, as words of a command line."""

    @st.composite
    def drawn(draw: st.DrawFn) -> list[str]:
        words: list[str] = []
        for option in draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=most, unique=True)):
            value = draw(st.sampled_from(values[option]))
            words += [option, *([value] if value else [])]
        return words

    return drawn()


def assert_all_drawn(group: type[OptionGroup], values: Values, elsewhere: str) -> None:
    """Assert that every option of a command is drawn, or is in ``elsewhere``, a line of words."""
    spelt = {option.spelling for option in declared(group).values() if option.spelling.startswith("-")}
    assert spelt == {*values, *elsewhere.split()}


def assert_one_line(done: Result, words: Sequence[object]) -> None:
    """Assert that a command was refused with one line of error, the last, which blames only options that were given.
    Before it there may be notices."""
    *notices, error = done.stderr.splitlines()
    assert (done.exit_code, done.stdout, error[:7], "Traceback" in done.output) == (2, "", "error: ", False), (
        done.output
    )
    assert not any(line.startswith(("error", " ")) for line in notices), done.output
    blamed = re.findall(r"(?:^error: |not with )(--[\w-]+)", error)
    assert {*blamed} <= {str(word) for word in words}, done.stderr


def assert_read_again(out: Path, *commands: str) -> None:
    for command in commands:
        again = bench(command, out)
        assert again.exit_code == 0, f"{command}: {again.exception!r} {again.output}"
