"""What each policy costs per scheduling step, with few and many requests waiting, beside stock vLLM.

    python benchmarks/policy_cost.py [--waiting 10 100 1000] [--steps 300] [--table step|turn] [--arms A B] [--keys N]
    python benchmarks/policy_cost.py --table step --model gemma-3-12b  # five groups of windows beside full attention
    python benchmarks/policy_cost.py --table prediction
    python benchmarks/policy_cost.py --table statistics
    python benchmarks/policy_cost.py --table recognition
    python benchmarks/policy_cost.py --table request
    python benchmarks/policy_cost.py --samples 1000 10000 100000

First form, two tables. A step: 32 requests decode, N wait, and the first of them never fits, so that every arm does
the same work; time in vLLM's ``schedule`` and ``update_from_output``, the plugin included, beside vLLM's own class. A
turn: programs come and go; time in the plugin and the policy for a turn's arrival, start, finish and pin. All arms in
one process and one run, stepping in turn (A B C A B C ...). ``--keys``: the programs have so many API keys.
``prediction``: a turn in the policy alone, with and without a predicted tool time. ``statistics``: the copy that
``serve --statistics`` makes every 30 s on the scheduler's thread, with full windows. ``recognition``: what it takes to
find programs by their prompts. ``request``: all of the scheduler's time for a request with an id and without one,
beside stock vLLM's. ``--samples``: the TTL decision.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

from commands import show, tabular
from continuum_analysis.compare.words import markdown
from continuum_server.policy.facts import Machine, PrefillCurve, ProgramState, TurnFinish, TurnState
from continuum_server.policy.pins import Pins
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.recognise import Prompt, Recogniser
from continuum_server.policy.registry import POLICIES, make_policy
from continuum_server.policy.rules.continuum import Continuum, ContinuumOptions
from continuum_server.policy.tool_times import ToolTimes
from continuum_server.routers import ROUTERS
from continuum_server.virtual import loop
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.loop import VirtualLoop
from continuum_server.virtual.oracle import ForeseeingScheduler
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, NAMESPACE_KEY
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, Tags, ToolCall, Turn
from continuum_traces.wire import tags_to_xargs
from vllm.v1.core.sched.scheduler import Scheduler

RUNNING = 32
PROMPT = 640
STEP_CONFIG = EngineConfig(gpu="a100-80gb", kv_blocks=32_768, max_num_seqs=128)
TURN_CONFIG = EngineConfig(gpu="a100-80gb", kv_blocks=1 + RUNNING * 42, max_num_seqs=128)
REQUEST_CONFIG = EngineConfig(gpu="a100-80gb", kv_blocks=40_000, max_num_seqs=128)
REQUESTS = {
    "stock vLLM": ("stock", True),
    "working-set, ids": ("working-set", True),
    "working-set, no ids": ("working-set", False),
}
"""Policy, and whether requests have ids, of each engine of the table of requests."""
STILL = {"autellix": {"first_quantum_s": 1e9}}
"""Options under which no request is preempted, because a step of the first table must be the same for all arms."""
EVENTS = ("_arrived", "_started", "_finished", "_obey")


class Stock(Scheduler):
    """vLLM's scheduler without the plugin, with the attributes that ``VirtualLoop`` reads."""

    class _NoPrograms:
        pins = Pins(block_tokens=16, max_tokens=0.0, max_ttl_s=0.0, max_per_client=None)

        def next_deadline_s(self) -> None:
            return None

    table: Any = _NoPrograms()

    def attach(self, clock: Any, sink: Any) -> None:
        return

    def release_all(self, reason: str) -> None:
        return


class Timed:
    """Seconds spent in the scheduler's own methods."""

    NAMES = ("schedule", "update_from_output", "add_request")

    def __init__(
        self,
        scheduler: Any,
        names: Sequence[str] = NAMES,
        clock: Callable[[], float] = time.perf_counter,  # noqa: TID251
    ) -> None:
        self.seconds = 0.0
        self._clock = clock
        for name in names:
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            result = method(*args, **kwargs)
            self.seconds += self._clock() - start
            return result

        return timed


class OneLoop(ReplicaLoops):
    """A single loop, and the jobs that it plays."""

    def __init__(self, loop: VirtualLoop, jobs: list[Job]) -> None:
        super().__init__([loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0)
        self.loop = loop

    def advance(self) -> None:
        """Let turns arrive until the scheduler is called, and call it once."""
        before = self.loop.counters.scheduler_calls
        while self.loop.counters.scheduler_calls == before:
            if not self.step():
                raise SystemExit("the jobs ended before the measurement")


def build(arm: str, config: EngineConfig, jobs: list[Job], options: dict[str, Any]) -> tuple[Any, OneLoop]:
    stock = arm == "stock"
    settings = settings_of(config, "vllm" if stock else arm, options)
    kind = Stock if stock else ForeseeingScheduler
    engine = build_engine(shape_of(config), times_of(config), settings, jobs, scheduler_type=kind, max_stretch=1)
    return engine.scheduler, OneLoop(engine.loop, jobs)


class Standing:
    """The engine of one arm, in which 32 requests decode and the first waiting request never fits."""

    def __init__(self, arm: str, waiting: int, steps: int, config: EngineConfig) -> None:
        tokens = max(4 * steps, 900)  # about 700 until second 10, when the waiting requests arrive, then one a step
        decoding = [Job(Program(f"r{i}", (Turn(PROMPT, tokens),)), 0.0) for i in range(RUNNING)]
        blocked = [Job(Program(f"w{i}", (Turn(PROMPT, 16),)), 10.0) for i in range(waiting)]
        self.scheduler, self.loop = build(arm, config, [*decoding, *blocked], STILL.get(arm, {}))
        while self.loop.now_s < 9.0:
            self.loop.advance()
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._decodes = RUNNING * len(self.scheduler.kv_cache_manager.coordinator.single_type_managers)
        """Blocks that the decodes of a step may take."""
        self._stash = self._pool.get_new_blocks(self._pool.get_num_free_blocks())
        while self.loop.now_s < 10.0:
            self.step()
        self.step()
        self._timed = Timed(self.scheduler)
        self.seconds: list[float] = []

    def step(self) -> None:
        while self._pool.get_num_free_blocks() < self._decodes:  # enough blocks for decodes, too few for a prompt
            self._pool.free_blocks([self._stash.pop()])
        self.loop.advance()

    def timed_step(self) -> None:
        before = self._timed.seconds
        self.step()
        self.seconds.append(self._timed.seconds - before)

    def check(self, arm: str, waiting: int) -> None:
        running, queued = len(self.scheduler.running), len(self.scheduler.waiting)
        if (running, queued) != (RUNNING, waiting):
            raise SystemExit(f"{arm}: {running} run and {queued} wait: no fair comparison")


def steps_us(arms: list[str], waiting: int, steps: int, config: EngineConfig) -> dict[str, float]:
    """Median microseconds of a step. The arms step in turn, so that a slow moment of the machine affects all of
    them."""
    standing = {arm: Standing(arm, waiting, steps, config) for arm in arms}
    gc.collect()
    gc.disable()
    for number in range(steps):
        shift = number % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            standing[arm].timed_step()
    gc.enable()
    for arm, engine in standing.items():
        engine.check(arm, waiting)
    return {arm: statistics.median(engine.seconds) * 1e6 for arm, engine in standing.items()}


def turn_us(arm: str, waiting: int, turns: int = 1_500) -> float:
    """Microseconds in the plugin for one turn while programs arrive and end."""
    call = (ToolCall("ls", 0.05),)
    made = (Turn(512, 16, tool_calls=call), *[Turn(32, 16, kept_tokens=512, tool_calls=call)] * 200)
    jobs = [Job(Program(f"p{i}", made), 0.0) for i in range(RUNNING + waiting)]
    scheduler, loop = build(arm, TURN_CONFIG, jobs, {})
    while loop.loop.turns_done < turns // 3:
        loop.advance()
    timed = Timed(scheduler, EVENTS, time.thread_time)  # this thread's processor time, not that of other processes
    before = loop.loop.turns_done
    while loop.loop.turns_done < before + turns:
        loop.advance()
    return timed.seconds / (loop.loop.turns_done - before) * 1e6


def keyed(keys: int) -> Callable[[Tags], dict[str, Any]]:
    """Return what adds one of so many API keys to a request's xargs, by the number in its program's name."""

    def xargs(tags: Tags) -> dict[str, Any]:
        key = f"{int(str(tags.program_id)[1:]) % keys:016x}"
        return {**tags_to_xargs(tags), CLIENT_KEY: key, NAMESPACE_KEY: key}

    return xargs


def stepping(arms: list[str], waiting: list[int], steps: int, config: EngineConfig) -> None:
    us = {count: steps_us(["stock", *arms], count, steps, config) for count in waiting}
    rows = (
        [arm, *(f"{us[count][arm]:.0f} ({us[count][arm] / us[count]['stock']:.3f})" for count in waiting)]
        for arm in us[waiting[0]]
    )
    _show(f"A step, us (ratio to stock), medians of {steps}", waiting, rows)


def turning(arms: list[str], waiting: list[int]) -> None:
    rows = ([arm, *(f"{min(turn_us(arm, count) for _ in range(3)):.0f}" for count in waiting)] for arm in arms)
    _show("A turn, us of the processor in plugin and policy, least of 3 runs", waiting, rows)


def _show(title: str, waiting: list[int], rows: Iterable[list[str]]) -> None:
    show(("", title, ""))
    show(markdown(("policy", *(f"{count:,} waiting" for count in waiting)), rows))


# ---------------------------------------------------------------------------------------------- one decision


def micros(action: Callable[[float], object], values: list[float]) -> float:
    """Microseconds of this thread's processor time for one call, without the machine's other work."""
    start = time.thread_time()
    for value in values:
        action(value)
    return (time.thread_time() - start) / len(values) * 1e6


@tabular("samples", "a sample", "sample and decision, G = 30 s", "the same, small G")
def deciding(sizes: list[int]) -> Iterator[Any]:
    """Microseconds of the processor; log-normal tool times (median 0.4 s). The window is full, so a sample also removes
    one. G: seconds that a return in time is worth; small: 10 times a tool time drawn anew."""
    for size in sizes:
        draw = random.Random(1)
        fresh = [draw.lognormvariate(-1.0, 1.5) for _ in range(size + 6_000)]
        times = ToolTimes(size)
        for seconds in fresh[:size]:
            times.add(seconds)

        def steady(seconds: float, times: ToolTimes = times) -> None:
            times.add(seconds)
            times.best_ttl(30.0)

        def small(seconds: float, times: ToolTimes = times) -> None:
            times.add(seconds)
            times.best_ttl(10.0 * seconds)

        batches = [fresh[size + at : size + at + 2_000] for at in (0, 2_000, 4_000)]
        cells = [micros(action, batch) for action, batch in zip((times.add, steady, small), batches, strict=True)]
        yield f"{size:,}", f"{cells[0]:.1f}", f"{cells[1]:.0f}", f"{cells[2]:.0f}"


# ----------------------------------------------------------------------- a prediction, a copy of the statistics


@tabular("policy", "without a hint, us", "with `pred_tool_s`, us")
def predicting(turns: int = 20_000) -> Iterator[Any]:
    for policy in ("working-set", "continuum"):
        yield policy, *(f"{hook_us(policy, hinted, turns):.1f}" for hinted in (False, True))


def hook_us(policy: str, hinted: bool, turns: int) -> float:
    """First decile of the policy's microseconds for a turn's arrival, start and finish, with 1,000 gaps recorded."""
    machine = Machine(PrefillCurve(1.5e-9, 5.5e-5, 0.0), kv_tokens=440_000)
    table, chance = ProgramTable(make_policy(policy, {}, machine), Guards(), machine.kv_tokens), random.Random(0)
    now_s, spent = 0.0, []
    program = table.identity.program_for("p", now_s)
    for number in range(turns):
        gap_s = chance.lognormvariate(1.0, 1.5)
        tags = Tags(pred_tool_s=gap_s, last_tool_duration_s=1.0) if hinted else Tags()
        turn = TurnState(program, 0, str(number), now_s, 20_000, table.identity.next_sequence(), tags)
        began = time.perf_counter()  # noqa: TID251 - a benchmark
        table.arrive(turn, now_s)
        table.start(turn, now_s, 0, 16)
        table.finish(TurnFinish(turn, now_s, 20_000, 100, "ls"))
        if number > 1000:
            spent.append(time.perf_counter() - began)  # noqa: TID251 - a benchmark
        now_s += gap_s
    return statistics.quantiles(spent, n=10)[0] * 1e6


@tabular("tools", "times of each", "copy")
def copying() -> Iterator[Any]:
    for tools, window in ((10, 4096), (256, 4096), (10, 100_000)):
        chance, options = random.Random(1), ContinuumOptions(sample_window=window)
        policy = Continuum(Machine(PrefillCurve(0.0, 1e-4, 0.0), 100_000), options)
        for number in range(tools * window):
            policy.tools.add(f"tool-{number % tools}", chance.expovariate(1.0))
        began_s = time.thread_time()
        policy.export_statistics()
        yield tools, window, f"{(time.thread_time() - began_s) * 1e3:.1f} ms"


# ------------------------------------------------------------------------------------------------ recognition


class Agents:
    """Agents that send nothing, and the recogniser of their programs. They repeat the last ``kept`` of the 150 tokens
    of each answer; ``seconds`` is what finding and remembering each turn took."""

    def __init__(self, kept: int) -> None:
        self.recogniser, self.kept = Recogniser(16), kept
        self.seconds: list[float] = []
        self._chance = random.Random(1)

    def words(self, tokens: int) -> list[int]:
        return self._chance.choices(range(1_000, 100_000), k=tokens)

    def turn(self, ids: list[int], program: ProgramState | None) -> ProgramState:
        """Play a turn, and append its answer and a tool's output to the history."""
        answer = self.words(150)
        prompt, context = hashed(ids), hashed([*ids, *answer])
        began_s = time.thread_time()
        match = self.recogniser.find("", prompt)
        recognised = match.program if match is not None else ProgramState(str(len(self.seconds)), 0.0, 0)
        self.recogniser.arrived("", recognised, prompt, match)
        self.recogniser.finished(recognised, answer, context.blocks or (), True)
        self.seconds.append(time.thread_time() - began_s)
        if program not in (None, recognised):
            raise SystemExit("a turn is not at its own program")
        ids += [*answer[150 - self.kept :], *self.words(600)]
        return recognised


def hashed(ids: list[int]) -> Prompt:
    """Hash blocks to 32 bytes, as vLLM does."""
    blocks = (tuple(ids[end - 16 : end]) for end in range(16, len(ids) + 1, 16))
    chain = islice(accumulate(blocks, lambda last, block: hash((last, block)), initial=0), 1, None)
    return Prompt(len(ids), [number.to_bytes(32, signed=True, byteorder="little") for number in chain], ids)


@tabular("request", "us, median", "mean", "largest")
def recognising() -> Iterator[Any]:
    gc.collect()
    gc.freeze()  # as vLLM does once it has started
    for kept, name in ((150, "a next turn"), (75, "a next turn that drops reasoning")):
        agents = Agents(kept)
        for _ in range(100):
            ids, program = agents.words(3_000), None
            for _ in range(20):
                program = agents.turn(ids, program)
        yield _recognised(name, agents.seconds)
    for name, prompt in (("an unknown prompt of 131,072 tokens", hashed(agents.words(131_072))), _sample(agents)):
        seconds = []
        for _ in range(100):
            began_s = time.thread_time()
            agents.recogniser.find("", prompt)
            seconds.append(time.thread_time() - began_s)
        yield _recognised(name, seconds)


def _sample(agents: Agents) -> tuple[str, Prompt]:
    """Return the second prompt of one of 64 programs whose first prompts are equal."""
    first = agents.words(3_000)
    histories = [[*first] for _ in range(64)]
    for ids in histories:
        agents.turn(ids, None)
    return "one of 64 samples of a prompt, without its reasoning", hashed([*histories[32], *agents.words(2_000)])


def _recognised(name: str, seconds: list[float]) -> list[str]:
    return [name, *(f"{of(seconds) * 1e6:.0f}" for of in (statistics.median, statistics.mean, max))]


@tabular("engine", "us a request", "ratio to stock")
def requesting(slices: int = 60, turns: int = 40) -> Iterator[Any]:
    """The scheduler's processor time for a request of agents whose histories grow from 3,000 to 8,000 tokens, and of
    which one arrives each second: the first decile of slices, which other processes disturb least. All engines in one
    process, stepping in turn."""
    call = (ToolCall("ls", 0.05),)
    made = (Turn(3_000, 32, tool_calls=call), *[Turn(200, 32, tool_calls=call)] * 24)
    engines: dict[str, tuple[OneLoop, Timed]] = {}
    for name, (arm, tagged) in REQUESTS.items():
        programs = [Program(f"p{number}", made, tagged=tagged) for number in range(slices * turns // 25 + RUNNING)]
        scheduler, loop = build(arm, REQUEST_CONFIG, [Job(each, float(at)) for at, each in enumerate(programs)], {})
        engines[name] = loop, Timed(scheduler, clock=time.thread_time)
    spent: dict[str, list[float]] = {name: [] for name in REQUESTS}
    gc.disable()
    for number in range(slices):
        for name, (loop, timed) in engines.items():
            before_s, done = timed.seconds, loop.loop.turns_done
            while loop.loop.turns_done < done + turns:
                loop.advance()
            if number >= slices // 4:
                spent[name].append((timed.seconds - before_s) / (loop.loop.turns_done - done))
    gc.enable()
    least = {name: statistics.quantiles(seconds, n=10)[0] * 1e6 for name, seconds in spent.items()}
    for name, us in least.items():
        yield name, f"{us:.0f}", f"{us / least['stock vLLM']:.3f}"


TABLES = {"prediction": predicting, "statistics": copying, "recognition": recognising, "request": requesting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[10, 100, 1_000, 5_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, nargs="+", help="only the TTL decision, at these numbers of samples")
    parser.add_argument("--table", choices=["step", "turn", *TABLES], help="only this table")
    parser.add_argument("--arms", nargs="+", default=list(POLICIES), metavar="POLICY", help="only these policies")
    parser.add_argument("--model", default=STEP_CONFIG.model, help="of the table of steps")
    parser.add_argument("--keys", type=int, help="number of API keys; default: the server has no keys")
    options = parser.parse_args()
    if options.keys:
        loop.tags_to_xargs = keyed(options.keys)
    if options.samples:
        show(deciding(options.samples))
        return
    if options.table in TABLES:
        show(TABLES[options.table]())
        return
    if options.table != "turn":
        config = replace(STEP_CONFIG, model=options.model)
        stepping(options.arms, options.waiting, options.steps, config)
    if options.table != "step":
        turning(options.arms, options.waiting)


if __name__ == "__main__":
    main()
