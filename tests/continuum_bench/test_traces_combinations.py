"""Options of ``traces`` together: each command writes what others read again, or says in one line why not, and then
leaves the file to write as it was. ``make fuzz`` draws hundreds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench_cli import bench, succeeded
from combinations import Values, assert_all_drawn, assert_one_line, folder, words_of
from continuum_bench.options import traces as options
from continuum_traces.programs.jsonl import write_programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_combinations import PROGRAMS

SOURCES = ("t.jsonl", "t.jsonl.gz", "empty.jsonl", "text.txt", "absent.jsonl", "run", "run/preview.json", ".", "dir")
TARGETS = ("new.jsonl", "new.jsonl.gz", "new.json", "there.jsonl", "new", "dir", ".", "absent/new.jsonl", "t.jsonl")
FORMATS = ("continuum", "spans", "mooncake", "nonsense")
OVERWRITE = {"--overwrite": ("",)}
COMMANDS: dict[str, tuple[type[options.OptionGroup], Values, Sequence[Sequence[str]]]] = {
    "import": (options.ImportOptions, {"--format": FORMATS} | OVERWRITE, (SOURCES, TARGETS)),
    "synth": (
        options.SynthOptions,
        {
            "--profile": ("swebench", "chat", "absent", "t.jsonl"),
            "--mix": ("chat:0.9,bfcl:0.1", "chat:1", "chat:0", "t.jsonl:1", "chat", "chat:0.5,chat:0.5"),
            "--num-programs": ("1", "5"),
            "--seed": ("0", "7"),
            "--length-scale": ("0.001", "0.2"),
            "--tokens-reading": ("context", "cumulative", "new"),
        }
        | OVERWRITE,
        (TARGETS,),
    ),
    "fit": (
        options.FitOptions,
        {"--name": ("mine", "../mine"), "--tokens-reading": ("context", "cumulative"), "--format": FORMATS} | OVERWRITE,
        (SOURCES, TARGETS),
    ),
    "stats": (options.StatsOptions, {"--format": FORMATS, "--json": ("",)}, ((*SOURCES, "swebench"),)),
    "convert": (
        options.ConvertOptions,
        {
            "--to": ("continuum", "agentic-mooncake", "mooncake", "dynamo", "preview", "native", "nonsense"),
            "--format": FORMATS,
        }
        | OVERWRITE,
        (SOURCES, TARGETS),
    ),
    "import-log": (
        options.ImportLogOptions,
        {"--gpu": ("h100", "toaster"), "--model": ("llama-3.1-8b", "nonsense")},
        (SOURCES, TARGETS),
    ),
    "validate": (options.OptionGroup, {}, (SOURCES,)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind, which every example copies."""
    return make(tmp_path_factory.mktemp("made"))


def make(here: Path) -> Path:
    arrivals = [replace(program, arrival_s=0.3 * number) for number, program in enumerate(PROGRAMS)]
    for name in ("t.jsonl", "t.jsonl.gz", "there.jsonl"):
        write_programs(here / name, arrivals)
    (here / "empty.jsonl").write_text("")
    (here / "text.txt").write_text("hello\n")
    (here / "dir").mkdir()
    succeeded("replay", here / "t.jsonl", "--jps", 8, "--policy", "working-set", "--out", here / "out", "--no-report")
    (run,) = (path.parent for path in (here / "out").glob("*/turns.jsonl"))
    shutil.copytree(run, here / "run")
    shutil.rmtree(here / "out")
    succeeded("traces convert", here / "run", here / "run" / "preview.json", "--to", "preview")
    return here


def traces(command: str, words: list[str], places: list[str], made: Path) -> None:
    with folder() as above, pytest.MonkeyPatch.context() as patched:
        here = above / "here"
        shutil.copytree(made, here)
        patched.chdir(here)
        before = contents(here)
        done = bench(f"traces {command}", *places, *words)
        after = contents(here)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        if done.exit_code in (1, 2) and done.exception and isinstance(done.exception, SystemExit):
            if command != "validate":
                assert_one_line(done, words)
            assert changed == set(), done.output
            return
        assert done.exit_code == 0, repr(done.exception) + done.output
        if command in ("import", "synth", "convert") and not {"preview", "native"} & {*words}:
            target = places[-1]
            assert {str(path) for path in changed} == {target}, done.output
            again = bench("traces stats", target)
            assert again.exit_code == 0, again.output
        if command == "fit":
            succeeded("traces synth", "again.jsonl", "--profile", places[-1], "-n", 2)


def contents(here: Path) -> dict[str, bytes]:
    return {str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "validate"])
def test_every_option_is_drawn(command: str) -> None:
    group, values, _ = COMMANDS[command]
    assert_all_drawn(group, values, "")


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    command = draw(st.sampled_from(sorted(COMMANDS)))
    _, values, places = COMMANDS[command]
    words = draw(st.just([]) | words_of(values)) if values else []
    if command == "convert" and "--to" not in words:
        words += ["--to", draw(st.sampled_from(values["--to"]))]
    return command, words, [draw(st.sampled_from(each)) for each in places]


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(commands())
def test_options_of_traces_together(made: Path, drawn: tuple[str, list[str], list[str]]) -> None:
    traces(*drawn, made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words", "places"),
    [
        ("import", "", ". new.jsonl"),  # files of a folder with the same ids
        ("convert", "--to dynamo", "t.jsonl new.jsonl.gz"),
        ("convert", "--to mooncake", "t.jsonl new.jsonl.gz"),
        ("fit", "", "t.jsonl new"),  # a profile without .json in its name
        ("synth", "--profile t.jsonl", "new.jsonl"),
        ("synth", "--profile t.jsonl.gz", "new.jsonl"),
        ("synth", "--mix t.jsonl:0.5,chat:0.5", "new.jsonl"),
    ],
)
def test_options_of_traces_that_did_not_go_together(command: str, words: str, places: str, made: Path) -> None:
    traces(command, words.split(), places.split(), made)
