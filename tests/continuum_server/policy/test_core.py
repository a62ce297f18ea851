"""The pure core: programs, pins, deadlines, victims, guards."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from continuum_server.policy.catalog import POLICIES, PolicyError, make_policy, read_options
from continuum_server.policy.core import Core, GuardError, Guards
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, TurnState
from continuum_server.policy.programs import IDLE_PROGRAMS_OF_AN_ID, Prompt
from continuum_server.policy.rules.ttl import Continuum
from continuum_server.vllm_plugin.settings import Settings, SettingsError, read_settings

MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=1000)


def core_with(policy: str = "static-ttl", guards: Guards | None = None, **options: object) -> Core:
    return Core(make_policy(policy, options, MACHINE), guards or Guards(), kv_tokens=1000, block_size=1)


def turn_of(core: Core, program_id: str, now_s: float, last: bool = False, tagged: bool = True) -> TurnState:
    program = core.program_for(program_id, now_s)
    sequence = core.next_sequence()
    turn = TurnState(
        program, program.turns_arrived, f"{program_id}/{sequence}", now_s, 100, sequence, is_last=last, tagged=tagged
    )
    core.arrive(turn, now_s)
    return turn


def play_turn(core: Core, program_id: str, start_s: float, end_s: float, tool: str | None = "ls") -> TurnState:
    turn = turn_of(core, program_id, start_s)
    core.start(turn, start_s, 0, 16)
    blocks = [f"{program_id}/{number}" for number in range(100)]
    hold = core.finish(turn, end_s, 100, 10, tool, blocks=blocks)
    if hold is not None:
        core.pin(turn, end_s, hold.ttl_s, blocks)
    return turn


def test_a_pin_expires_after_its_deadline_not_at_it() -> None:
    core = core_with(ttl_s=2.0)
    play_turn(core, "a", 0.0, 1.0)
    assert core.next_deadline_s() == 3.0
    assert core.expired(3.0) == []
    (pin,) = core.expired(3.0001)
    assert pin.program.program_id == "a"


def test_a_returned_program_keeps_its_pin_past_the_deadline() -> None:
    core = core_with(ttl_s=2.0)
    play_turn(core, "a", 0.0, 1.0)
    turn_of(core, "a", 2.5)
    assert core.expired(100.0) == []
    assert core.has_pin("a")


def test_the_last_step_holds_nothing_and_ends_the_program() -> None:
    core = core_with(ttl_s=2.0)
    turn = turn_of(core, "a", 0.0, last=True)
    assert core.finish(turn, 1.0, 100, 10, "ls") is None
    assert core.program_for("a", 5.0).turns_arrived == 0  # a new program of that name


def test_untagged_requests_are_never_held() -> None:
    core = core_with(ttl_s=2.0)
    turn = turn_of(core, "request-1", 0.0, tagged=False)
    assert core.finish(turn, 1.0, 100, 10, None) is None


def prompt(*blocks: str) -> Prompt:
    return Prompt(len(blocks) * 16, blocks)


def arrive(core: Core, program_id: str, blocks: Sequence[str], now_s: float = 0.0, **names: Any) -> TurnState:
    program = core.program_for(program_id, now_s, prompt=prompt(*blocks), **names)
    number = core.next_sequence()
    turn = TurnState(program, 0, f"r{number}", now_s, len(blocks) * 16, number, blocks=blocks)
    core.arrive(turn, now_s)
    return turn


def end(core: Core, turn: TurnState, hits: int = 0) -> TurnState:
    core.start(turn, turn.arrival_s, hits * 16, 16)
    core.finish(turn, turn.arrival_s, turn.prompt_tokens, 1, "ls")
    return turn


def test_a_program_goes_on_where_its_prompt_does() -> None:
    core = core_with("vllm")
    first = end(core, arrive(core, "a", "abcdefgh"))
    assert arrive(core, "a", "abcdefghijkl").program is first.program
    for changed in ("abcdeXghij", "abcdefgh"[:5]):  # an edited tail, a shorter prompt: at least half is kept
        core = core_with("vllm")
        first = end(core, arrive(core, "a", "abcdefgh"))
        assert arrive(core, "a", changed).program is first.program


def test_another_prompt_under_an_old_id_is_a_new_program() -> None:
    core = core_with("vllm")
    old = end(core, arrive(core, "a", "abcdefgh"))
    stranger = arrive(core, "b", "uvwxyz")
    anew = end(core, arrive(core, "a", "abXXXXXXXX"))
    assert anew.program.sequence > stranger.program.sequence > old.program.sequence
    assert [old.index, anew.index] == [0, 1]  # turns of an id are counted on
    assert arrive(core, "a", "abcdefghij").program is old.program  # a side conversation ends nothing


def test_a_shared_system_prompt_continues_nothing() -> None:
    """Of ten blocks the cache held eight when the conversation began: two are its own."""
    core = core_with("vllm")
    first = end(core, arrive(core, "a", "SSSSSSSSab"), hits=8)
    assert arrive(core, "a", "SSSSSSSSxyz").program is not first.program
    assert arrive(core, "a", "SSSSSSSSabc").program is first.program


def test_requests_of_one_id_at_once_are_programs_of_their_own() -> None:
    core = core_with("vllm")
    first = end(core, arrive(core, "a", "abcd"))
    turns = [arrive(core, "a", "abcde", 1.0 + number) for number in range(3)]
    assert turns[0].program is first.program
    assert len({id(turn.program) for turn in turns}) == 3
    ranks = [make_policy("program-fcfs", {}, MACHINE).rank(turn) for turn in turns]
    assert ranks == sorted(ranks)


def test_a_flood_under_one_id_is_forgotten() -> None:
    core = core_with("vllm")
    for number in range(50):
        end(core, arrive(core, "a", [f"{number}.{block}" for block in range(4)]))
    assert len(core.programs_of("a")) <= IDLE_PROGRAMS_OF_AN_ID + 1


def test_ids_belong_to_their_keys() -> None:
    core = core_with("vllm")
    mine, yours = (end(core, arrive(core, "a", "abcd", namespace=key)) for key in ("k1", "k2"))
    assert mine.program is not yours.program
    assert core.programs_of("a", "k1") == [mine.program]
    assert core.programs_of("a") == []
    assert arrive(core, "a", "abcde", namespace="k2").program is yours.program
    child = arrive(core, "child", "xyz", parent_id="a", namespace="k3")
    assert child.program.family is None
    assert (mine.program.name, yours.program.name) == ("k1:a", "k2:a")


def test_guards_cap_time_and_share() -> None:
    core = core_with(guards=Guards(max_ttl_s=1.0, max_pinned_share=0.15), ttl_s=50.0)
    first = play_turn(core, "a", 0.0, 1.0)
    assert core.next_deadline_s() == 2.0
    play_turn(core, "b", 0.0, 1.0)  # 100 of 150 tokens are pinned: no room for another 100
    assert list(core.pins) == ["a"]
    assert core.pinned_tokens == 100
    core.unpin(first.program.program_id)
    assert core.pinned_tokens == 0


def test_victims_are_the_latest_programs_and_never_ones_own() -> None:
    core = core_with(guards=Guards(pins_yield_to="later"), ttl_s=50.0)
    for name in "abc":
        play_turn(core, name, 0.0, 1.0)
    asker = turn_of(core, "b", 2.0)
    assert [pin.program.program_id for pin in core.victims(asker, running=True)] == ["c", "a"]
    assert [pin.program.program_id for pin in core.victims(asker, running=False)] == ["c"]
    core.guards = Guards(pins_yield_to="never")
    assert list(core.victims(asker, running=False)) == []


def test_who_waits_yields_to_an_earlier_program_who_is_away_does_not() -> None:
    core = core_with(guards=Guards(pins_yield_to="waiting"), ttl_s=50.0)
    for name in "abcd":
        play_turn(core, name, 0.0, 1.0)
    asker = turn_of(core, "b", 2.0)
    for name in "ac":
        turn_of(core, name, 2.0)  # back, and waiting like the asker; d's tool runs
    assert [pin.program.program_id for pin in core.victims(asker, running=False)] == ["c"]
    assert [pin.program.program_id for pin in core.victims(asker, running=True)] == ["d", "c", "a"]


def test_the_guard_leaves_it_to_the_policy() -> None:
    for core, victims in ((core_with(ttl_s=50.0), []), (core_with("working-set"), ["b"])):
        for name in "ab":
            play_turn(core, name, 0.0, 1.0)
        turn_of(core, "b", 1.0)
        assert list(core.pins) == ["a", "b"]
        asker = turn_of(core, "a", 1.0)
        assert [pin.program.program_id for pin in core.victims(asker, running=False)] == victims


def test_idle_programs_are_forgotten_first() -> None:
    core = core_with("vllm", Guards(max_programs=10))
    busy = turn_of(core, "busy", 0.0)
    for number in range(1000):
        core.finish(turn_of(core, f"p{number}", 1.0), 2.0, 100, 1, None)
    assert core.program_count <= 12
    assert core.programs_of("busy") == [busy.program]


def test_tool_times_are_gaps_keyed_by_tool() -> None:
    core = core_with("continuum", cold_samples=0)
    policy = core.policy
    assert isinstance(policy, Continuum)
    play_turn(core, "a", 0.0, 1.0, tool="pytest")
    turn = turn_of(core, "a", 4.5)
    turn_of(core, "a", 4.6)  # beside the first: no second sample of the same gap
    assert policy.tools.counts() == {"pytest": 1}
    assert len(policy.tools.times_for("pytest")) == 1
    assert policy.tools.times_for("pytest").best_ttl(10.0) == 3.5
    core.abort(turn)


def test_delay_counts_only_evicted_returns() -> None:
    core = core_with("continuum")
    policy = core.policy
    assert isinstance(policy, Continuum)
    play_turn(core, "a", 0.0, 1.0)
    kept = turn_of(core, "a", 2.0)
    core.start(kept, 5.0, hit_tokens=96, block_size=16)
    assert policy.delay.mean_s == 0.0
    core.finish(kept, 6.0, 100, 1, "ls")
    evicted = turn_of(core, "a", 7.0)
    core.start(evicted, 11.0, hit_tokens=0, block_size=16)
    assert policy.delay.mean_s == 4.0


def test_an_answer_the_next_prompt_drops_is_no_eviction() -> None:
    core = core_with("continuum")
    policy = core.policy
    assert isinstance(policy, Continuum)
    first = turn_of(core, "a", 0.0)
    core.start(first, 0.0, 0, 16)
    core.finish(first, 1.0, 900, 800, "ls")  # 800 tokens of reasoning that never come back
    core.start(turn_of(core, "a", 2.0), 5.0, hit_tokens=96, block_size=16)
    assert policy.delay.mean_s == 0.0


def test_resuming_after_preemption_is_no_second_start() -> None:
    core = core_with("continuum")
    turn = turn_of(core, "a", 0.0)
    assert core.start(turn, 1.0, 0, 16)
    assert not core.start(turn, 2.0, 0, 16)


@pytest.mark.parametrize("name", POLICIES)
def test_options_are_checked(name: str) -> None:
    with pytest.raises(PolicyError, match="no option 'moon'"):
        read_options(POLICIES[name], {"moon": 1})
    make_policy(name, {}, MACHINE)


def test_options_from_text() -> None:
    assert read_options(POLICIES["static-ttl"], {"ttl_s": "2.5"}) == {"ttl_s": 2.5}
    assert read_options(POLICIES["static-ttl"], {"ttl_s": "none"}) == {"ttl_s": None}
    with pytest.raises(PolicyError, match="cold_samples"):
        read_options(POLICIES["continuum"], {"cold_samples": "many"})
    with pytest.raises(PolicyError, match="there are: vllm"):
        make_policy("moon", {}, MACHINE)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_ttl_s", -1.0, "must be a number of seconds, 0 or more and finite"),
        ("max_ttl_s", math.nan, "must be a number of seconds, 0 or more and finite"),
        ("max_ttl_s", math.inf, "must be a number of seconds, 0 or more and finite"),
        ("max_ttl_s", "600", "must be a number of seconds, 0 or more and finite"),
        ("max_pinned_share", -0.1, "must be a number from 0 to 1"),
        ("max_pinned_share", 1.01, "must be a number from 0 to 1"),
        ("max_pinned_share", True, "must be a number from 0 to 1"),
        ("max_pins_per_client", -1, "must be a whole number, 0 or more; none: no limit"),
        ("max_pins_per_client", 2.5, "must be a whole number, 0 or more; none: no limit"),
        ("max_overtake_s", -1.0, "must be a number of seconds, 0 or more"),
        ("max_overtake_s", math.nan, "must be a number of seconds, 0 or more"),
        ("max_overtake_s", True, "must be a number of seconds, 0 or more"),
        ("max_programs", 0, "must be a whole number, at least 1"),
        ("pins_yield_to", "moon", "there are policy, never, waiting, later, anyone"),
        ("pins_yield_to", None, "there are policy, never, waiting, later, anyone"),
        ("pins_yield_to", ["never"], "there are policy, never, waiting, later, anyone"),
    ],
)
def test_guards_that_cannot_be_are_refused(name: str, value: object, allowed: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(GuardError) as refused:
        Guards(**given)
    assert str(refused.value) == f"{name} = {value!r}: {allowed}"
    with pytest.raises(SettingsError) as refused_setting:
        read_settings({"continuum": {"guards": given}})
    assert str(refused_setting.value) == f"additional-config continuum.guards.{name} = {value!r}: {allowed}"


def test_guards_at_their_limits_are_taken() -> None:
    lowest = Guards(max_ttl_s=0, max_pinned_share=0, max_pins_per_client=0, max_programs=1)
    assert read_settings(Settings(guards=lowest).to_config()).guards == lowest
    assert read_settings(Settings(guards=Guards(max_pinned_share=1)).to_config()).guards.max_pinned_share == 1


@pytest.mark.parametrize(
    ("guards", "message"),
    [
        (5, "continuum.guards = 5: must be an object"),
        ({"max_ttl": 1}, "continuum.guards.max_ttl: unknown; there are: max_ttl_s, max_pinned_share"),
    ],
)
def test_settings_that_hold_no_guards_are_refused(guards: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({"continuum": {"guards": guards}})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"moon": 1}, "moon: unknown; there are: policy, "),
        ({"policy": 5}, "policy = 5: must be text"),
        ({"policy_options": ["ttl_s"]}, "policy_options = ['ttl_s']: must be an object"),
        ({"prefill": 5}, "prefill = 5: must be an object"),
        ({"prefill": {"a": 1.0, "b": 1.0}}, "prefill.c: missing"),
        ({"prefill": {"a": 1.0, "b": "x", "c": 0.0}}, "prefill.b = 'x': must be a number from -1000000000000 to "),
        ({"prefill": {"a": 1.0, "b": math.nan, "c": 0.0}}, "prefill.b = nan: must be a number from "),
        ({"prefill": {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}}, "prefill.d: unknown; there are: a, b, c, source"),
        ({"decode": {"fixed_s": True, "token_s": 0.0}}, "decode.fixed_s = True: must be a number from "),
        ({"decode": []}, "decode = []: must be an object, or none"),
        ({"swap_token_s": "1"}, "swap_token_s = '1': must be a number from 0 to 1000000000000, or none"),
        ({"deep_token_s": None}, "deep_token_s = None: must be a number from 0 to 1000000000000"),
        ({"tier_tokens": 2.9}, "tier_tokens = 2.9: must be a whole number from 0 to 1000000000000"),
        ({"tier_tokens": True}, "tier_tokens = True: must be a whole number from 0 to 1000000000000"),
        ({"record_path": 5}, "record_path = 5: must be text, or none"),
        ({"statistics_path": ["a"]}, "statistics_path = ['a']: must be text, or none"),
        ({"tool_parser": False}, "tool_parser = False: must be text, or none"),
    ],
)
def test_settings_of_another_type_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings({"continuum": given})
    assert str(refused.value).startswith(f"additional-config continuum.{message}")


@pytest.mark.parametrize("section", [5, "x", [], None])
def test_settings_that_are_no_object_are_refused(section: object) -> None:
    with pytest.raises(SettingsError, match=r"additional-config continuum = .*: must be an object"):
        read_settings({"continuum": section})


def test_settings_come_back_as_they_were() -> None:
    given = Settings(
        "continuum", {"cold_samples": 3}, Guards(), PrefillCurve(-1e-9, 2e-5, -0.1), 1e-6, decode=DecodeLine(0.01, 1e-7)
    )
    assert read_settings(json.loads(json.dumps(given.to_config()))) == given
    assert read_settings(None) == read_settings({}) == Settings()
