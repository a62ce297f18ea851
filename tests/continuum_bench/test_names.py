"""A name that does not exist: the error says which one is spelled alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_bench.cli import app
from continuum_traces.names import near, which
from recorded_runs import write_recorded
from typer.testing import CliRunner


def test_case_and_underscores_do_not_count() -> None:
    assert near("WORKING_SET", ["vllm", "working-set"]) == "did you mean working-set? "
    assert near("moon", ["vllm", "working-set"]) == ""
    assert which("tokns", ["tokens", "text"]) == "did you mean tokens? there are tokens and text"


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("swebench --policy wrking-set", "working-set"),
        ("swebench --policy-option continuum.statistic=x --policy continuum", "statistics"),
        ("swebench --gpu h100-80g", "h100-80gb"),
        ("swebench --model llama-3.1-8", "llama-3.1-8b"),
        ("swebench --step-times hig", "high"),
        ("figure goodputt", "goodput"),
        ("traces synth OUT --profile swebenc", "swebench"),
        ("traces convert FILE OUT --to moncake", "mooncake"),
        ("traces stats FILE --format continum", "continuum"),
        ("sweep --set num_program=3", "num_programs"),
        ("analyze RUN --table turn", "turns"),
        ("compare RUN --format markdwn", "markdown"),
        ("compare RUN --baseline vlm", "vllm"),
        ("compare RUN --fail-if jct_men>1 --point-estimate", "jct_mean_s"),
        ("compare RUN --fail-if jct_men_ratio>1 --point-estimate", "jct_mean_s"),
    ],
)
def test_every_kind_of_name(command: str, meant: str, tmp_path: Path) -> None:
    write_recorded(tmp_path / "run", "vllm", 0, [2.0])
    (tmp_path / "file").touch()
    places = {"OUT": tmp_path / "out", "FILE": tmp_path / "file", "RUN": tmp_path / "run"}
    words = [str(places.get(word, word)) for word in command.replace(">", " > ", 1).split(" ") if word]
    if "--fail-if" in words:
        at = words.index("--fail-if") + 1
        words[at : at + 3] = [" ".join(words[at : at + 3])]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"did you mean {meant}" in done.stderr
