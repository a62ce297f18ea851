"""``--max-outside``: new programs are refused while too many wait, in virtual time and by a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.policy.program_table import Guards
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, TurnRecord
from live_server import Live, live, tokens
from nano import build, program
from openai import InternalServerError
from waiting import until


def played(programs: list[Program], guards: Guards) -> tuple[dict[str, list[TurnRecord]], list[SchedulerEvent]]:
    """Play programs in a KV pool of 1,024 tokens. One arrives every 10 ms. Return each program's turns, and the
    scheduler's events."""
    turns, events = list[TurnRecord](), list[SchedulerEvent]()
    jobs = [Job(each, 0.01 * number) for number, each in enumerate(programs)]
    build(jobs, "working-set", {}, guards=guards, turns=turns, events=events)[1].run()
    return {
        each.program_id: [turn for turn in turns if turn.program_id == each.program_id] for each in programs
    }, events


def test_a_refused_program_ends_and_the_engine_never_sees_it() -> None:
    child = replace(program("child", turns=1), parent_id="c", parent_turn=0)
    programs = [*(program(name, turns=1, new=800) for name in "abc"), child]
    turns, events = played(programs, Guards(max_outside=1))
    assert {name: [turn.error for turn in of] for name, of in turns.items()} == {
        "a": [None],
        "b": [None],
        "c": ["http-503"],
        "child": [],
    }
    assert 0.02 <= (turns["c"][0].finish_s or 0.0) < 0.1  # between two steps
    assert {event.program_id for event in events} == {"a", "b"}
    assert all(turn.error is None for of in played(programs, Guards(max_outside=2))[0].values() for turn in of)


@pytest.mark.slow
def test_a_server_answers_503_to_new_programs_alone(tmp_path: Path) -> None:
    """The pool has room for one of three. The first goes on while the third is refused, whole and as a stream."""
    guards, slow = Guards(max_outside=1), EmulatedSettings()
    pool = {"kv_blocks": 300, "block_size": 16, "max_model_len": 4500, "policy": "working-set"}
    with live(tmp_path, guards=guards, emulated=slow, **pool) as server, ThreadPoolExecutor() as threads:
        first = tokens(4000, 1)
        threads.submit(server.complete, first, 400, program_id="a")
        until(lambda: server.state()["running"] == 1)
        second = threads.submit(server.complete, tokens(4000, 2), program_id="b")
        until(lambda: server.state()["programs_outside"] == 1)
        for stream in (False, True):
            with pytest.raises(InternalServerError) as refused:
                ask(server, "c", stream)
            assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (503, "10")
        threads.submit(server.complete, tokens(40, 3), program_id="a-child", parent_id="a").result()
        assert second.result().usage.completion_tokens == 8
        ask(server, "c", stream=False)
        assert server.state()["programs_refused"] == 2


def ask(server: Live, name: str, stream: bool) -> None:
    xargs = {"program_id": name}
    server.client.completions.create(
        model=server.model, prompt=tokens(40, 4), max_tokens=4, stream=stream, extra_body={"vllm_xargs": xargs}
    )
