"""No number that a user can type ends in a traceback: every numeric option of every command refuses absurd ones. Rules
between options: each can be broken, and a sweep's own servers break none."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from math import inf, nan
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from bench_cli import allowed, bench
from continuum_bench.agents_cli import agent_app
from continuum_bench.cli import app, traces_app
from continuum_bench.commands import add_command
from continuum_bench.errors import OptionError
from continuum_bench.options.declare import OR_INFINITE, Declared, OptionGroup, declared
from continuum_bench.options.forms import TOOL_TIMES, WARM_UP, Forms
from continuum_bench.options.run import RunOptions
from continuum_bench.options.serve import ProfileOptions, ServeOptions
from continuum_bench.options.together import Rule, rules_of, settled
from continuum_bench.serve.config import server_config
from continuum_bench.virtual.engine_options import engine_of
from continuum_server.engine_settings import GpuSettings, SchedulerSettings
from continuum_server.policy.program_table import Guards
from continuum_server.server_command import command_of
from continuum_server.server_config import ServerConfig
from continuum_server.virtual.config import EngineConfig
from continuum_traces.grouped import grouped
from continuum_traces.schema import REQUESTS
from continuum_traces.typed import to_json
from msgspec import Meta
from typer.testing import CliRunner

EDGES = [
    (Meta(ge=1), 1, 0, "at least 1"),
    (Meta(le=3000), 3000, 3001, "at most 3,000"),
    (Meta(gt=0, title="programs"), 1e-9, 0, "above 0"),
    (Meta(gt=0, le=1), 1, 1.01, "at most 1"),
    (Meta(), 0, -1e-9, "at least 0"),
    (Meta(), 1e12, 1.1e12, "at most 1,000,000,000,000"),
    (Meta(ge=-1), 0, -0.5, "at least 0"),
    (OR_INFINITE, inf, -inf, "at least 0"),
    (OR_INFINITE, 1e12, 2e12, "at most 1,000,000,000,000"),
]
"""Of a range: the last value that it allows, one beyond, and what the error says must be."""
NOUGHT = "compact_at drain_s max_think_s port retries seed shared_prefix step_overhead_ms temperature"
"""The options that may be 0."""
ABSURD = (1e23, -1e23, 10**23, inf, -inf, nan)
TYPED = ("1e23", "-1e23", "9" * 23, "9" * 5000, "inf", "nan", "1e400", "one", "")


def commands() -> Iterator[tuple[str, Any]]:
    """Every parameter of every command, before dataclasses of options are taken apart."""
    for group in (app, agent_app, traces_app):
        for command in group.registered_commands:
            function: Any = inspect.unwrap(command.callback)  # type: ignore[arg-type]
            yield from ((str(command.name), hint) for hint in get_type_hints(function, include_extras=True).values())


def numbers_in(hint: Any) -> set[type]:
    kinds = {hint} & {int, float}
    return kinds.union(*map(numbers_in, get_args(hint))) if get_args(hint) else kinds


def test_every_number_of_every_command_is_a_checked_option() -> None:
    """A number is a field of ``OptionGroup``, whose constructor holds all of them to the same limits."""
    for command, hint in commands():
        if is_dataclass(hint):
            assert issubclass(hint, OptionGroup), command  # type: ignore[arg-type]
            assert hint.__post_init__ is OptionGroup.__post_init__, command
        elif hint is not int:  # the exit code
            assert not numbers_in(hint), command


def _declared(hint: Any) -> list[Declared]:
    return list(declared(hint).values()) if is_dataclass(hint) else []


def numbers() -> list[Declared]:
    return [option for _, hint in commands() for option in _declared(hint) if numbers_in(option.plain_type)]


@pytest.mark.parametrize("number", ABSURD)
def test_absurd_numbers_are_one_sentence(number: float) -> None:
    for option in numbers():
        if number == inf and OR_INFINITE in option.extras:
            option.check(number)
            continue
        with pytest.raises(OptionError, match=rf"^{option.spelling} \S+: ") as caught:
            option.check([1.0, number] if option.name == "limits" else number)
        assert "\n" not in str(caught.value)


def test_no_number_is_negative_and_few_are_0() -> None:
    """What guards allow is the server's word, which other tests have."""
    checked = [option for option in numbers() if option.name not in Guards.__dataclass_fields__]
    assert [option.name for option in checked if allowed(option, -1)] == []
    assert {option.name for option in checked if allowed(option, 0)} == set(NOUGHT.split())


def test_a_limit_allows_its_edge() -> None:
    for bounds, last, beyond, words in EDGES:
        option = Declared("x", Annotated[float, bounds], 0.0, OptionGroup, OptionGroup)
        option.check(last)
        with pytest.raises(OptionError, match=f"^--x \\S+: {bounds.title or ''} ?must be {words}$"):
            option.check(beyond)


@dataclass(frozen=True)
class NewcomersOptions(OptionGroup):
    """An option as CONTRIBUTING.md says."""

    times: Annotated[int, Meta(ge=1)] = 3
    """How often the word is said."""


@dataclass(frozen=True)
class WithoutSentence(OptionGroup):
    times: int = 3


def test_a_field_with_a_sentence_below_it_is_an_option() -> None:
    app = typer.Typer()

    @add_command(app)
    def say(options: NewcomersOptions) -> int:
        """Say a word."""
        typer.echo("word" * options.times)
        return 0

    def output(*arguments: str) -> str:
        return CliRunner().invoke(app, arguments).output.strip()

    assert (output(), output("--times", "1")) == ("wordwordword", "word")
    assert output("--times", "0") == "error: --times 0: must be at least 1"
    assert "  --times <int>\n      How often the word is said. [default: 3]" in output("--help")


def test_an_option_without_a_sentence_is_an_error_of_its_author() -> None:
    def say(options: WithoutSentence) -> int:
        return 0

    with pytest.raises(TypeError, match=r"WithoutSentence\.times: write a sentence below this option"):
        add_command(typer.Typer())(say)


@pytest.mark.parametrize("number", TYPED)
def test_on_the_command_line(number: str) -> None:
    done = bench("swebench --jps", number)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)


def test_a_sweeps_server_gets_no_option_that_does_nothing() -> None:
    """A grid may combine hints [none, tool_s] with errors [0, 1]."""
    crossed = RunOptions(hint_error="1", jps=3.0, arrivals="concurrency:2")
    assert settled(crossed) == RunOptions(arrivals="concurrency:2")
    assert settled(RunOptions(hints="tool_s", hint_error="1")).hint_error == "1"


def test_rules_name_options_that_exist() -> None:
    """A rule about an option that no command has beside it would never be broken."""
    beside: dict[tuple[str, Rule], bool] = {}
    options = grouped((command, each) for command, hint in commands() for each in _declared(hint))
    for declared_here in options.values():
        names = {option.name for option in declared_here}
        for option in declared_here:
            for rule in rules_of(option):
                beside[option.name, rule] = beside.get((option.name, rule), False) or rule.other in names
    assert len(beside) > 20
    assert [each for each, found in beside.items() if not found] == []


def test_a_setting_of_the_engine_is_declared_once() -> None:
    """The command line, the virtual engine and servers take it from the same class. ``serve --model`` takes a path."""
    settings = {field.name: kind for kind in (GpuSettings, SchedulerSettings) for field in fields(kind)}
    for kind in (RunOptions, ServeOptions, ProfileOptions):
        owners = {name: option.owner for name, option in declared(kind).items() if name in settings}
        assert {name for name, owner in owners.items() if owner is not settings[name]} <= {"model"}
        assert {option.group.panel for name, option in declared(kind).items() if name in owners.keys() - {"model"}} == {
            "Engine"
        }
    for config in (EngineConfig, ServerConfig):
        assert not set(vars(config)["__annotations__"]) & (set(settings) - {"model"})
    engine, description = engine_of(RunOptions(max_num_seqs=3, chunk_tokens=70, kv_blocks=50, tp=2, pp=2))
    assert (engine.max_num_seqs, engine.chunk_tokens, engine.kv_blocks, engine.tp, engine.pp) == (3, 70, 50, 2, 2)
    written = to_json(description.engine_options)
    assert [written[name] for name in ("max_num_seqs", "chunk_tokens", "kv_blocks")] == [3, 70, 50]
    assert (written["tensor_parallel"], written["pipeline_parallel"], "tp" in written) == (2, 2, False)
    gpu = ServeOptions(engine="gpu", model="m", tp=2, chunk_tokens=700, gpu_memory_utilization=0.5)
    flags = dict(pairwise(command_of(server_config(gpu, {}), 8000)[0]))
    assert [flags[f"--{name}"] for name in ("max-num-seqs", "max-num-batched-tokens")] == ["256", "700"]
    assert [flags[f"--{name}"] for name in ("tensor-parallel-size", "gpu-memory-utilization")] == ["2", "0.5"]


def test_the_help_of_an_option_names_every_form_of_its_text_and_its_parts() -> None:
    for option in declared(RunOptions).values():
        for form in [form for each in option.extras if isinstance(each, Forms) for form in each.forms if form.name]:
            assert set(re.findall(r"\w+", form.spelling)) <= set(re.findall(r"\w+", option.help)), form.spelling


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        *(("hang:0", [0.0]), ("hang:1:10", [1.0, 10.0]), ("hang:.5", [0.5]), ("hang:1.01", None), ("hang:-0.1", None)),
        *(("hang", None), ("hang:", None), ("hang:nan", None), ("hang:0.5:10:", None), ("hangs:0.5", None)),
        *(("hang:0.5:100000000", [0.5, 1e8]), ("hang:0.5:100000001", None), (" hang:0.5", None)),
    ],
)
def test_a_form_takes_numbers_in_their_ranges_and_nothing_else(text: str, numbers: list[float] | None) -> None:
    (hang,) = (form for form in TOOL_TIMES.forms if form.name == "hang")
    assert hang.read(text) == numbers


@pytest.mark.parametrize(
    ("text", "taken"), [("0r", False), ("1r", True), ("01r", False), ("999999r", True), ("1e1r", False)]
)
def test_requests_of_the_warm_up_are_those_that_the_analysis_reads(text: str, taken: bool) -> None:
    assert (REQUESTS.fullmatch(text) is not None) == taken == WARM_UP.holds(text)
