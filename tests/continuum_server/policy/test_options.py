"""Settings of every kind: what is accepted makes a policy that lives; what is not is one line."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from continuum_server.emulated.settings import EmulatedSettings, read_emulated_settings
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve
from continuum_server.policy.limits import LimitError, hints_of
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES, PolicyError, make_policy, read_options
from continuum_server.vllm_plugin.plugin_settings import Settings, SettingsError, read_settings
from hypothesis import strategies as st
from nano import BITING, each_policy
from reference_engine import MACHINE, Engine

PAGES = Path(__file__).parents[3] / "docs" / "policies"
MACHINES = (
    MACHINE,
    replace(MACHINE, prefill=PrefillCurve(0.0, 0.0, 0.0), max_num_batched_tokens=1, decode=None),
    replace(MACHINE, prefill=PrefillCurve(1e-9, 1e-5, 0.01), swap_token_s=1e-6, ssd_token_s=1e-5),
)
EDGES = (0, 1, 2, 3, 64, 0.5, 0.999, 1e-320, 1e-9, 1e-3, 1e6, 1e9, 1e300, 10**6, 10**9, 10**30, 10**400)
NOT_NUMBERS = (True, "2", "0.5", "none", "evicted", "moon", None, [], {}, b"1", math.inf, math.nan, -1, -0.5)
VALUES = st.sampled_from((*EDGES, *NOT_NUMBERS)) | st.integers(0, 2000) | st.floats(0.0, 1e6)


# ------------------------------------------------------------------------------------------- options of policies


def accepted(policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that are taken one by one."""
    taken: dict[str, Any] = {}
    refusals: list[str] = []
    for name, value in options.items():
        try:
            taken |= read_options(POLICIES[policy], {name: value})
        except PolicyError as error:
            refusals.append(str(error))
    assert all("option " in line and len(line) < 300 for line in refusals)
    return taken


def live(policy: str, options: dict[str, Any], machine: Machine) -> None:
    """Turns that arrive, run, lose their place, finish and are lost. Any order of these: test_machine.py."""
    engine = Engine(policy, options, Guards(max_programs=3), machine)
    for number in range(24):
        name, chain = f"p{number % 5}", tuple(f"{number % 5}.{block}" for block in range(number))
        engine.arrive(
            name, chain, "p0" if number % 7 == 6 else None, is_last_step=number % 6 == 5, tagged=number % 9 > 0
        )
        engine.step((0.0, 0.01, 7.0, 700.0)[number % 4])
        for request in engine.running[:1] if number % 3 else ():
            engine.finish(request, (), ("ls", None)[number % 2])
        for request in engine.running[:1] if number % 8 == 7 else ():
            engine.preempt(request)
        for request in engine.waiting[:1] if number % 10 == 9 else ():
            engine.abort(request)


IN_THE_OVERVIEW = {"vllm", "vllm-guard", "program-fcfs"}
"""Policies whose whole rule is a row of the overview; the others have a section of their own."""


def test_each_policy_is_a_file_and_a_section() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    for name, policy in POLICIES.items():
        file = "bounds" if policy.label == "bound" else name.replace("-", "_")
        assert policy.__module__.partition(".rules.")[2].removeprefix("papers.") == file
        places = [text for stem, text in pages.items() if (stem == "README") == (name in IN_THE_OVERVIEW)]
        assert any(re.search(rf"^#+ `?{name}`?$|`{name}`", text, re.MULTILINE) for text in places), name


@each_policy()
def test_each_policy_lives_at_the_edges_of_its_options(policy: str) -> None:
    options_type = POLICIES[policy].options_type
    made = make_policy(policy, BITING[policy], MACHINES[0])
    assert set(made.gauges) <= set(made.state())
    with pytest.raises(PolicyError, match="no option 'moon'"):
        read_options(POLICIES[policy], {"moon": 1})
    for each in fields(options_type):
        for value in (*EDGES, *NOT_NUMBERS):
            options = accepted(policy, {each.name: value}) if each.name != "statistics" else {}
            for machine in MACHINES if options else ():
                live(policy, options, machine)


def test_options_may_come_as_text() -> None:
    read = read_options(POLICIES["static-ttl"], {"ttl_s": "2", "delay_window": "7"})
    assert read == {"ttl_s": 2.0, "delay_window": 7}
    assert isinstance(read["ttl_s"], float)
    assert read_options(POLICIES["static-ttl"], {"ttl_s": "none"}) == {"ttl_s": None}
    with pytest.raises(PolicyError, match="there are: vllm"):
        make_policy("moon", {}, MACHINE)


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("policy", "name", "value", "allowed"),
    [
        *(("static-ttl", "delay_window", value, "a whole number from 1 to 10000000") for value in (0, 2.9, "2.9")),
        *(("static-ttl", "ttl_s", value, "a number from 0 to 1000000000, or none") for value in (False, [1])),
        ("continuum", "statistics", 5, "text, or none"),
        ("continuum-v1", "delta", 1.0, "a number above 1e-12, below 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(policy: str, name: str, value: object, allowed: str) -> None:
    with pytest.raises(PolicyError) as refused:
        read_options(POLICIES[policy], {name: value})
    assert str(refused.value) == f"policy {policy!r}: option {name} = {value!r}: must be {allowed}"


def test_a_word_that_is_none_of_those_allowed() -> None:
    with pytest.raises(LimitError, match="one_offs = 'moon': must be one of first, fcfs"):
        Guards(one_offs="moon")  # type: ignore[arg-type]


CHECKED = list(dict.fromkeys((Guards, EmulatedSettings, *(policy.options_type for policy in POLICIES.values()))))


@pytest.mark.parametrize("kind", CHECKED, ids=lambda kind: kind.__name__)
def test_every_setting_is_checked(kind: Any) -> None:
    """By ``limits``, for its type and its range, which is finite."""
    for name in hints_of(kind):
        for value in (object(), math.nan, math.inf, 1e13, -math.inf):
            with pytest.raises((LimitError, ValueError), match=f"{name} = .*: must be "):
                kind(**{name: value})
        with pytest.raises((LimitError, ValueError), match=f"{name} = "):
            kind(**{name: [asdict(kind())[name]]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, ": 5 is not an object"),
        ({"moon": 1}, ": moon: unknown field"),
        ({"policy_options": ["ttl_s"]}, ": policy_options: ['ttl_s'] is not an object"),
        ({"guards": {"max_ttl": 1}}, ": guards.max_ttl: unknown field"),
        ({"guards": {"max_ttl_s": "600"}}, ": guards.max_ttl_s: '600' is not a number"),
        ({"guards": {"max_programs": 0}}, ": guards: max_programs = 0: must be a whole number from 1 to 1000000000"),
        ({"guards": {"pins_yield_to": None}}, ": guards.pins_yield_to: Input should be 'policy', 'never'"),
        ({"prefill": {"a": 1.0, "b": 1.0}}, ": prefill.c: missing"),
        ({"prefill": {"a": 1.0, "b": math.nan, "c": 0.0}}, ": prefill.b: nan is not a finite number"),
        ({"decode": {"fixed_s": True, "token_s": 0.0}}, ": decode.fixed_s: True is not a number"),
        ({"swap_token_s": -1.0}, ": swap_token_s = -1.0: must be a number from 0 to 1000000000000, or none"),
    ],
)
def test_a_server_s_settings_that_cannot_be_are_refused(given: Any, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({"continuum": given})
    assert str(refused.value).startswith(f"additional-config continuum{message}")


def test_settings_come_back_as_they_were() -> None:
    lowest = Guards(max_ttl_s=0, max_pinned_share=0, max_pins_per_client=0, max_programs=1)
    curve, line = PrefillCurve(-1e-9, 2e-5, -0.1), DecodeLine(0.01, 1e-7)
    made = Settings("continuum", {"cold_samples": 3}, lowest, curve, 1e-6, decode=line, recognise="ids")
    assert read_settings(json.loads(json.dumps(made.to_config()))) == made
    assert read_settings(None) == read_settings({}) == Settings()
    emulated = EmulatedSettings(gpu="a100-80gb", time_scale=4.0)
    assert read_emulated_settings(emulated.to_config()) == emulated
