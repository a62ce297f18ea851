"""Fair sharing between API keys on vLLM's scheduler, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from continuum_server.policy.program_table import FairBetween, Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.policy.tenants import STEP_TOKENS, TICK_S
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import SchedulerEvent, Tags
from fairness_bench import Engine
from fairness_rows import Ask, ids
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nano import BITING, SERVED, each_policy, keyed, play, program, workloads

A, B = "a" * 16, "b" * 16
LAG = 0.2
"""Of the pool of 48 blocks: 0.015 s."""
SEATS = 8
PLAYED_S = 5.0


def events(jobs: list[Job], policy: str, guards: Guards, key_of: Callable[[str], str | None]) -> list[SchedulerEvent]:
    with keyed(key_of):
        return play(jobs, policy, BITING[policy], blocks=48, guards=guards).events


@each_policy()
@given(jobs=workloads(wishes=True), key=st.sampled_from([None, A]))
@settings(max_examples=settings.default.max_examples // 12)
def test_one_key_or_none_changes_no_event(policy: str, jobs: list[Job], key: str | None) -> None:
    fair, unfair = (events(jobs, policy, Guards(fair=fair), lambda name: key) for fair in ("keys", "none"))
    assert fair == unfair


QUEUE_AND_CHAT = [
    *(Job(program(f"p{number}", turns=1, new=600), 0.01 * number) for number in range(150)),
    Job(program("p151", turns=1, new=5), 12.0),
]
"""Under policies that order programs, the last one runs before others that wait."""


@given(jobs=workloads())
@example(jobs=QUEUE_AND_CHAT)
@settings(max_examples=settings.default.max_examples // 4)
def test_within_the_lag_vllm_serves_all_keys_in_order_of_arrival(jobs: list[Job]) -> None:
    """The queue that replaces vLLM's own once two keys compete has the same order."""
    two = lambda name: 16 * "ab"[int(name[1:]) % 2]  # noqa: E731
    shared, own = (events(jobs, "vllm", guards, two) for guards in (Guards(key_lag=1e9), Guards(fair="none")))
    assert shared == own


@dataclass(frozen=True, slots=True)
class Habit:
    """What the clients of a key do. Each sends its next request once the one before has ended."""

    clients: int
    prompt: int
    output: int
    text: str
    """new: another prompt each time; same: always the same prompt for all clients; longer: the client's last prompt and
    more."""
    named: bool
    abort_at: int | None = None
    """The clients leave after so many tokens of the answer."""

    def ask(self, key: str, client: int, number: int) -> Ask:
        tags = Tags(f"{key}{client}") if self.named else Tags()
        text = {"new": f"{key} {client} {number}", "same": key, "longer": f"{key} {client}"}[self.text]
        prompt = ids(text, self.prompt + (16 * number if self.text == "longer" else 0))
        return Ask(prompt, self.output, tags, "ls" if self.named else None, self.abort_at)


GATED = "thunderagent"
"""This policy lets no request in while it holds programs back, whatever their keys, so no lag bounds a key's wait."""
HABITS = st.builds(
    Habit,
    st.integers(2, 24),
    st.sampled_from([16, 200, 900, 2500]),
    st.integers(1, 60),
    st.sampled_from(["new", "same", "longer"]),
    st.booleans(),
    st.sampled_from([None, None, 3]),
)


class Account(Engine):
    """An engine that measures what each key is given for its weight, without the virtual times of ``Tenants``."""

    def __init__(self, policy: str, habits: dict[str, Habit], weights: dict[str, float]) -> None:
        super().__init__(policy, BITING[policy], Guards(key_lag=LAG), max_num_seqs=SEATS)
        self.scheduler.sink = self
        self._habits, self._weights = habits, weights
        self._machine = self.scheduler.table.policy.machine
        self._given_s = dict.fromkeys(habits, 0.0)
        self._waiting: dict[str, set[str]] = {key: set() for key in habits}
        self._running: dict[str, tuple[str, float]] = {}
        """The key of each request that runs, and when it started."""
        self._left: set[str] = set()
        """The requests that no longer run after this step."""
        self._backlogged = set(habits)
        """The keys of which a request waited at every moment so far."""
        self._prompt_s = self._stay_s = 0.0
        self.behind_s = 0.0
        """By how much such a key was given less than another, at most."""
        self.virtual_behind_s = 0.0
        """By how much the virtual time of any key with a waiting request was less than another's, at most."""

    @property
    def longest_s(self) -> float:
        """The longest computation of a prompt, and the longest stay of a request that started."""
        return self._prompt_s + max([self._stay_s, *(self.now_s - since_s for _, since_s in self._running.values())])

    def play(self, until_s: float) -> None:
        for key, habit in self._habits.items():
            for client in range(habit.clients):
                self._next(key, client, 0)
        self.run(lambda: False, until_s)
        assert self.scheduler.wall.errors == 0

    def _next(self, key: str, client: int, number: int) -> None:
        ask = self._habits[key].ask(key, client, number)
        self.send(ask, lambda _: self._next(key, client, number + 1), key * 16, self._weights[key])

    def write(self, event: SchedulerEvent) -> None:
        key, request = str(event.program_id)[0], str(event.request_id)
        if event.event in ("arrive", "preempt"):
            self._waiting[key].add(request)
        elif event.event in ("start", "resume", "finish"):
            self._waiting[key].discard(request)
            self._backlogged -= set() if self._waiting[key] else {key}
        if event.event in ("start", "resume"):
            self._left.discard(request)  # preempted and resumed in one step
            self._running[request] = key, self.now_s
        if event.event == "start":
            cost_s = self._machine.prefill.marginal_prefill_s
            prompt_s = cost_s(event.prompt_tokens or 0) - cost_s(event.hit_tokens or 0)
            self._prompt_s = max(self._prompt_s, prompt_s)
            self._given_s[key] += prompt_s / self._weights[key]
        if event.event in ("finish", "preempt") and request in self._running:
            self._left.add(request)

    def _step(self) -> bool:
        since_s, tokens = self.now_s, {name: each.num_tokens for name, each in self.scheduler.requests.items()}
        ran = super()._step()
        for request, (key, _) in self._running.items():
            self._hold(key, max(tokens[request], self._machine.kv_tokens / SEATS), self.now_s - since_s)
        for pin in self.scheduler.table.pins.values():
            if pin.program.turn is None:
                self._hold(pin.program.namespace[0], pin.tokens, self.now_s - since_s)
        for request in self._left:
            self._stay_s = max(self._stay_s, self.now_s - self._running.pop(request)[1])
        self._left.clear()
        self._compare()
        return ran

    def _hold(self, key: str, tokens: float, seconds: float) -> None:
        self._given_s[key] += seconds * tokens / self._machine.kv_tokens / self._weights[key]

    def _compare(self) -> None:
        least_s = min((self._given_s[key] for key in self._backlogged), default=math.inf)
        self.behind_s = max(self.behind_s, max(self._given_s.values()) - least_s)
        tenants = list(self.scheduler.table.tenants)
        least_s = min((each.virtual_s for each in tenants if each.waiting), default=math.inf)
        self.virtual_behind_s = max(self.virtual_behind_s, max(each.virtual_s for each in tenants) - least_s)


ABORTS = Habit(24, 200, 60, "same", named=False, abort_at=3)
AGENTS = Habit(4, 900, 40, "longer", named=True)
CROWD = Habit(24, 900, 40, "new", named=True)


@pytest.mark.hypothesis
@each_policy([name for name in SERVED if name != GATED])
@given(habits=st.tuples(HABITS, HABITS), weight=st.sampled_from([1.0, 3.0]))
@example(habits=(ABORTS, CROWD), weight=1.0)
@example(habits=(CROWD, CROWD), weight=3.0)
@example(habits=(CROWD, AGENTS), weight=1.0)
@settings(max_examples=settings.default.max_examples // 12)
def test_no_key_falls_behind_by_more_than_the_lag_and_a_request(
    policy: str, habits: tuple[Habit, Habit], weight: float
) -> None:
    """A key with a waiting request is at most a lag and the longest request behind every other (three requests if the
    policy acts at each step). Measured here for keys of which a request always waited, and in virtual times for all
    keys."""
    engine = Account(policy, dict(zip("ab", habits, strict=True)), {"a": 1.0, "b": weight})
    engine.play(PLAYED_S)
    requests = 3 if POLICIES[policy].steps else 1
    bound_s = engine.scheduler.table.tenants.lag_s + TICK_S + requests * engine.longest_s
    assert engine.behind_s <= bound_s
    assert engine.virtual_behind_s <= bound_s


@pytest.mark.parametrize("policy", ["vllm", "program-fcfs"])
def test_a_key_with_one_request_does_not_wait_for_the_queue_of_another(policy: str) -> None:
    """Sixteen programs of one key wait when another key's only program comes."""
    jobs = [Job(program(f"p{number}", turns=1, new=300, output=20), 0.01 * number) for number in range(16)]
    jobs.append(Job(program("q", turns=1, new=300, output=20), 0.5))
    started = {}
    for fair in ("keys", "none"):
        rows = events(jobs, policy, Guards(fair=fair, key_lag=LAG), lambda name: B if name == "q" else A)  # type: ignore[arg-type]
        starts = [event.program_id for event in rows if event.event == "start"]
        started[fair] = next(place for place, name in enumerate(starts) if name.endswith("q"))
    assert started["none"] == 16
    assert started["keys"] < 8


LONG_AND_SHORT = [
    *(Job(program(f"p{number}", turns=1, new=280, output=80), 0.01 * number) for number in range(2)),
    Job(program("q", turns=1, new=200, output=20), 0.3),
]
"""Two answers of one key grow until they fill the KV pool of 48 blocks. Then the other key sends its request."""


@pytest.mark.parametrize("policy", ["vllm", "program-fcfs", "continuum", "working-set"])
@pytest.mark.parametrize("fair", ["keys", "none"])
def test_a_key_behind_preempts_what_a_key_ahead_runs_beyond_its_share(policy: str, fair: FairBetween) -> None:
    rows = events(LONG_AND_SHORT, policy, Guards(fair=fair, key_lag=LAG), lambda name: B if name == "q" else A)
    assert [row.program_id[-2:] for row in rows if row.event == "preempt"] == (["p1"] if fair == "keys" else [])
    ended = [row.program_id[-1] for row in rows if row.event == "finish"]
    assert ended == (["q", "0", "1"] if fair == "keys" else ["0", "1", "q"])


class Steps(Engine):
    """An engine that notes the tokens of each step in which the stream of ``B`` decodes."""

    def __init__(self, guards: Guards) -> None:
        super().__init__("vllm", {}, guards)
        self.tokens: list[int] = []
        self.send(Ask(ids("stream", 64), 200, Tags("stream")), lambda answer: None, B)
        for number in range(8):
            self.at(0.1, partial(self.send, Ask(ids(f"{number}", 3000), 1, Tags()), lambda answer: None, A))
        inner = self.scheduler.schedule

        def schedule() -> Any:
            output = inner()
            if output.num_scheduled_tokens.get("0") == 1:
                self.tokens.append(output.total_num_scheduled_tokens)
            return output

        self.scheduler.schedule = schedule
        self.run(lambda: False, 60.0)


@pytest.mark.parametrize(("fair", "most"), [("keys", STEP_TOKENS + 1), ("none", 2048)])
def test_prompts_are_computed_in_small_parts_beside_a_key_that_only_decodes(fair: FairBetween, most: int) -> None:
    assert max(Steps(Guards(fair=fair)).tokens) == most
