"""The program table: programs, pins, deadlines, victims, guards."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from continuum_server.policy.facts import DecodeLine, Hold, Machine, PrefillCurve, TurnState
from continuum_server.policy.limits import LimitError
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.programs import IDLE_PROGRAMS_OF_AN_ID, Prompt
from continuum_server.policy.registry import POLICIES, PolicyError, make_policy, read_options
from continuum_server.policy.rules.continuum import Continuum
from continuum_server.vllm_plugin.plugin_settings import Settings, SettingsError, read_settings

MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=1000)


def table_with(policy: str = "static-ttl", guards: Guards | None = None, **options: object) -> ProgramTable:
    return ProgramTable(make_policy(policy, options, MACHINE), guards or Guards(), kv_tokens=1000, block_size=1)


def turn_of(table: ProgramTable, program_id: str, now_s: float, last: bool = False, tagged: bool = True) -> TurnState:
    program = table.program_for(program_id, now_s)
    sequence = table.next_sequence()
    turn = TurnState(
        program, program.turns_arrived, f"{program_id}/{sequence}", now_s, 100, sequence, is_last=last, tagged=tagged
    )
    table.arrive(turn, now_s)
    return turn


def play_turn(table: ProgramTable, program_id: str, start_s: float, end_s: float, tool: str | None = "ls") -> TurnState:
    turn = turn_of(table, program_id, start_s)
    table.start(turn, start_s, 0, 16)
    blocks = [f"{program_id}/{number}" for number in range(100)]
    hold = table.finish(turn, end_s, 100, 10, tool, blocks=lambda: blocks)
    if hold is not None:
        table.pin(turn, end_s, hold, blocks)
    return turn


def test_a_pin_expires_after_its_deadline_not_at_it() -> None:
    table = table_with(ttl_s=2.0)
    play_turn(table, "a", 0.0, 1.0)
    assert table.next_deadline_s() == 3.0
    assert table.expired(3.0) == []
    (pin,) = table.expired(3.0001)
    assert pin.program.program_id == "a"


def test_a_returned_program_keeps_its_pin_past_the_deadline() -> None:
    table = table_with(ttl_s=2.0)
    play_turn(table, "a", 0.0, 1.0)
    turn_of(table, "a", 2.5)
    assert table.expired(100.0) == []
    assert "a" in table.pins


def test_the_last_step_holds_nothing_and_ends_the_program() -> None:
    table = table_with(ttl_s=2.0)
    turn = turn_of(table, "a", 0.0, last=True)
    assert table.finish(turn, 1.0, 100, 10, "ls") is None
    assert table.program_for("a", 5.0).turns_arrived == 0  # a new program of that name


def test_soft_holds_cost_no_memory_and_no_search() -> None:
    """Conversations with one id that all ask for a soft hold: no more are remembered than without it."""
    table = table_with("program-fcfs")
    for number in range(50):
        program = table.program_for("user", 1.0 * number, prompt=Prompt(16, [number]))
        turn = TurnState(program, 0, f"r{number}", 1.0 * number, 16, number, soft_hold_s=100.0, blocks=[number])
        table.arrive(turn, 1.0 * number)
        table.start(turn, 1.0 * number, 0, 16)
        hold = table.finish(turn, 1.0 * number, 16, 1, None)
        assert hold is not None
        assert table.pin(turn, 1.0 * number, hold, [number]).blocks == ()
    assert table.program_count <= IDLE_PROGRAMS_OF_AN_ID + 1
    assert len(table.soft) == table.soft_tokens == 50
    for pin in table.expired(1000.0):
        table.unpin(pin.program.program_id)
    assert table.soft_tokens == len(table.soft) == 0


def test_untagged_requests_are_never_held() -> None:
    table = table_with(ttl_s=2.0)
    turn = turn_of(table, "request-1", 0.0, tagged=False)
    assert table.finish(turn, 1.0, 100, 10, None) is None


def prompt(*blocks: str) -> Prompt:
    return Prompt(len(blocks) * 16, blocks)


def arrive(table: ProgramTable, program_id: str, blocks: Sequence[str], now_s: float = 0.0, **names: Any) -> TurnState:
    program = table.program_for(program_id, now_s, prompt=prompt(*blocks), **names)
    number = table.next_sequence()
    turn = TurnState(program, 0, f"r{number}", now_s, len(blocks) * 16, number, blocks=blocks)
    table.arrive(turn, now_s)
    return turn


def end(table: ProgramTable, turn: TurnState, hits: int = 0) -> TurnState:
    table.start(turn, turn.arrival_s, hits * 16, 16)
    table.finish(turn, turn.arrival_s, turn.prompt_tokens, 1, "ls")
    return turn


def test_a_program_goes_on_where_its_prompt_does() -> None:
    table = table_with("vllm")
    first = end(table, arrive(table, "a", "abcdefgh"))
    assert arrive(table, "a", "abcdefghijkl").program is first.program
    for changed in ("abcdeXghij", "abcdefgh"[:5]):  # an edited tail, a shorter prompt: at least half is kept
        table = table_with("vllm")
        first = end(table, arrive(table, "a", "abcdefgh"))
        assert arrive(table, "a", changed).program is first.program


@pytest.mark.parametrize(
    ("kept", "share"),
    [(16, 1.0), (14, 1.0), (13, 0.75), (10, 0.625), (8, 0.5)],  # the marks stand at eighths
)
def test_a_program_keeps_as_much_of_its_seniority_as_of_its_prompt(kept: int, share: float) -> None:
    table = table_with("program-fcfs")
    before = "abcdefghijklmnop"
    first = end(table, arrive(table, "a", before))
    for number in range(7):
        end(table, arrive(table, f"b{number}", f"{number}"))
    back = arrive(table, "a", before[:kept] + "XYZ", now_s=100.0)
    assert back.program is first.program
    assert back.program.arrival_s == pytest.approx(100.0 * (1.0 - share))
    assert back.program.sequence == pytest.approx(1.0 + 8.0 * (1.0 - share))
    assert table.policy.rank(back) == (back.program.sequence, 9)


def test_a_pin_is_no_place_in_front_for_another_prompt() -> None:
    """A turn that repeats half of the last prompt neither comes before others nor keeps the pin from ending."""
    for kept, comes_first in ((16, True), (8, False)):
        table = table_with("static-ttl", ttl_s=2.0)
        first = end(table, arrive(table, "a", "abcdefghijklmnop"))
        table.pin(first, 0.0, Hold(2.0), first.request_id)
        back = arrive(table, "a", "abcdefghijklmnop"[:kept] + "XYZ", now_s=1.0)
        assert back.program is first.program
        assert table.pinned(back) == comes_first
        assert table.expired(10.0) == ([] if comes_first else [table.pins["a"]])


@pytest.mark.parametrize(("hits", "lost"), [(400, False), (375, False), (300, True)])
def test_only_what_a_shortened_prompt_repeats_can_be_lost(hits: int, lost: bool) -> None:
    """Of 600 blocks the next prompt keeps 400 and adds a summary: it is no eviction that the rest is not in it."""
    table = ProgramTable(make_policy("continuum", {}, MACHINE), Guards(), kv_tokens=400_000, block_size=16)
    end(table, arrive(table, "a", [f"a{number}" for number in range(600)]))
    back = arrive(table, "a", [*[f"a{number}" for number in range(400)], "summary"], now_s=10.0)
    table.start(back, 15.0, hits * 16, 16)
    assert table.policy.state()["delay_estimate_seconds"] == (5.0 if lost else 0.0)


def test_another_prompt_under_an_old_id_is_a_new_program() -> None:
    table = table_with("vllm")
    old = end(table, arrive(table, "a", "abcdefgh"))
    stranger = arrive(table, "b", "uvwxyz")
    anew = end(table, arrive(table, "a", "abXXXXXXXX"))
    assert anew.program.sequence > stranger.program.sequence > old.program.sequence
    assert [old.index, anew.index] == [0, 1]  # turns of an id are counted on
    assert arrive(table, "a", "abcdefghij").program is old.program  # a side conversation ends nothing


def test_a_shared_system_prompt_continues_nothing() -> None:
    """Of ten blocks the cache held eight when the conversation began: two are its own."""
    table = table_with("vllm")
    first = end(table, arrive(table, "a", "SSSSSSSSab"), hits=8)
    assert arrive(table, "a", "SSSSSSSSxyz").program is not first.program
    assert arrive(table, "a", "SSSSSSSSabc").program is first.program


def test_requests_of_one_id_at_once_are_programs_of_their_own() -> None:
    table = table_with("vllm")
    first = end(table, arrive(table, "a", "abcd"))
    turns = [arrive(table, "a", "abcde", 1.0 + number) for number in range(3)]
    assert turns[0].program is first.program
    assert len({id(turn.program) for turn in turns}) == 3
    ranks = [make_policy("program-fcfs", {}, MACHINE).rank(turn) for turn in turns]
    assert ranks == sorted(ranks)


def test_a_flood_under_one_id_is_forgotten() -> None:
    table = table_with("vllm")
    for number in range(50):
        end(table, arrive(table, "a", [f"{number}.{block}" for block in range(4)]))
    assert len(table.programs_of("a")) <= IDLE_PROGRAMS_OF_AN_ID + 1


def test_ids_belong_to_their_keys() -> None:
    table = table_with("vllm")
    mine, yours = (end(table, arrive(table, "a", "abcd", namespace=key)) for key in ("k1", "k2"))
    assert mine.program is not yours.program
    assert table.programs_of("a", "k1") == [mine.program]
    assert table.programs_of("a") == []
    assert arrive(table, "a", "abcde", namespace="k2").program is yours.program
    child = arrive(table, "child", "xyz", parent_id="a", namespace="k3")
    assert child.program.family is None
    assert (mine.program.name, yours.program.name) == ("k1:a", "k2:a")


def test_guards_cap_time_and_share() -> None:
    table = table_with(guards=Guards(max_ttl_s=1.0, max_pinned_share=0.15), ttl_s=50.0)
    first = play_turn(table, "a", 0.0, 1.0)
    assert table.next_deadline_s() == 2.0
    play_turn(table, "b", 0.0, 1.0)  # 100 of 150 tokens are pinned: no room for another 100
    assert list(table.pins) == ["a"]
    assert table.pinned_tokens == 100
    table.unpin(first.program.program_id)
    assert table.pinned_tokens == 0


def test_victims_are_the_latest_programs_and_never_ones_own() -> None:
    table = table_with(guards=Guards(pins_yield_to="later"), ttl_s=50.0)
    for name in "abc":
        play_turn(table, name, 0.0, 1.0)
    asker = turn_of(table, "b", 2.0)
    assert [pin.program.program_id for pin in table.victims(asker, must_free=True)] == ["c", "a"]
    assert [pin.program.program_id for pin in table.victims(asker, must_free=False)] == ["c"]
    table.guards = Guards(pins_yield_to="never")
    assert list(table.victims(asker, must_free=False)) == []


def test_who_waits_yields_to_an_earlier_program_who_is_away_does_not() -> None:
    table = table_with(guards=Guards(pins_yield_to="waiting"), ttl_s=50.0)
    for name in "abcd":
        play_turn(table, name, 0.0, 1.0)
    asker = turn_of(table, "b", 2.0)
    for name in "ac":
        turn_of(table, name, 2.0)  # back, and waiting like the asker; d's tool runs
    assert [pin.program.program_id for pin in table.victims(asker, must_free=False)] == ["c"]
    assert [pin.program.program_id for pin in table.victims(asker, must_free=True)] == ["d", "c", "a"]


def test_the_guard_leaves_it_to_the_policy() -> None:
    for table, victims in ((table_with(ttl_s=50.0), []), (table_with("working-set"), ["b"])):
        for name in "ab":
            play_turn(table, name, 0.0, 1.0)
        turn_of(table, "b", 1.0)
        assert list(table.pins) == ["a", "b"]
        asker = turn_of(table, "a", 1.0)
        assert [pin.program.program_id for pin in table.victims(asker, must_free=False)] == victims


def test_idle_programs_are_forgotten_first() -> None:
    table = table_with("vllm", Guards(max_programs=10))
    busy = turn_of(table, "busy", 0.0)
    for number in range(1000):
        table.finish(turn_of(table, f"p{number}", 1.0), 2.0, 100, 1, None)
    assert table.program_count <= 12
    assert table.programs_of("busy") == [busy.program]


def test_tool_times_are_gaps_keyed_by_tool() -> None:
    table = table_with("continuum", cold_samples=0)
    policy = table.policy
    assert isinstance(policy, Continuum)
    play_turn(table, "a", 0.0, 1.0, tool="pytest")
    turn = turn_of(table, "a", 4.5)
    turn_of(table, "a", 4.6)  # beside the first: no second sample of the same gap
    assert policy.tools.counts() == {"pytest": 1}
    assert len(policy.tools.times_for("pytest")) == 1
    assert policy.tools.times_for("pytest").best_ttl(10.0) == 3.5
    table.abort(turn)


def test_delay_counts_only_evicted_returns() -> None:
    table = table_with("continuum")
    policy = table.policy
    assert isinstance(policy, Continuum)
    play_turn(table, "a", 0.0, 1.0)
    kept = turn_of(table, "a", 2.0)
    table.start(kept, 5.0, hit_tokens=96, block_size=16)
    assert policy.delay.mean_s == 0.0
    table.finish(kept, 6.0, 100, 1, "ls")
    evicted = turn_of(table, "a", 7.0)
    table.start(evicted, 11.0, hit_tokens=0, block_size=16)
    assert policy.delay.mean_s == 4.0


def test_an_answer_the_next_prompt_drops_is_no_eviction() -> None:
    table = table_with("continuum")
    policy = table.policy
    assert isinstance(policy, Continuum)
    first = turn_of(table, "a", 0.0)
    table.start(first, 0.0, 0, 16)
    table.finish(first, 1.0, 900, 800, "ls")  # 800 tokens of reasoning that never come back
    table.start(turn_of(table, "a", 2.0), 5.0, hit_tokens=96, block_size=16)
    assert policy.delay.mean_s == 0.0


def test_resuming_after_preemption_is_no_second_start() -> None:
    table = table_with("continuum")
    turn = turn_of(table, "a", 0.0)
    assert table.start(turn, 1.0, 0, 16)
    assert not table.start(turn, 2.0, 0, 16)


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
        ("max_ttl_s", -1.0, "a number from 0 to 1000000000000"),
        ("max_ttl_s", math.nan, "a number from 0 to 1000000000000"),
        ("max_ttl_s", math.inf, "a number from 0 to 1000000000000"),
        ("max_ttl_s", "600", "a number from 0 to 1000000000000"),
        ("max_pinned_share", -0.1, "a number from 0 to 1"),
        ("max_pinned_share", 1.01, "a number from 0 to 1"),
        ("max_pinned_share", True, "a number from 0 to 1"),
        ("max_pins_per_client", -1, "a whole number from 0 to 1000000000, or none"),
        ("max_pins_per_client", 2.5, "a whole number from 0 to 1000000000, or none"),
        ("max_overtake_s", -1.0, "a number from 0 to 1000000000000"),
        ("max_overtake_s", math.nan, "a number from 0 to 1000000000000"),
        ("max_overtake_s", True, "a number from 0 to 1000000000000"),
        ("max_programs", 0, "a whole number from 1 to 1000000000"),
        ("pins_yield_to", "moon", "one of policy, never, waiting, later, anyone"),
        ("pins_yield_to", None, "one of policy, never, waiting, later, anyone"),
        ("pins_yield_to", ["never"], "one of policy, never, waiting, later, anyone"),
    ],
)
def test_guards_that_cannot_be_are_refused(name: str, value: object, allowed: str) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(LimitError) as refused:
        Guards(**given)
    assert str(refused.value) == f"{name} = {value!r}: must be {allowed}"
    with pytest.raises(SettingsError) as refused_setting:
        read_settings({"continuum": {"guards": given}})
    assert str(refused_setting.value) == f"additional-config continuum.guards.{name} = {value!r}: must be {allowed}"


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
