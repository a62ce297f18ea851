"""The workloads that ``order.py`` plays: programs, the engine that serves them, and when they arrive.

Each set is a dictionary from a cell's name to a function of a seed. Memory is short in most cells. ``pressed`` has
thirteen kinds of programs in an open loop, ``unmarked`` the same without marked ends, ``draw`` 60 workloads drawn at
random, ``agents`` N programs at a time, ``beside`` large programs, chats and streams beside small ones, ``untagged``
requests without ids, ``held-out`` kinds on which nothing was tuned, ``mixes`` agents beside long streams, and
``recorded`` the sessions of trace files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from continuum_bench.workload.arrivals import arrival_times, lanes_of
from continuum_server.virtual.config import EngineConfig
from continuum_server.virtual.engine import settings_of
from continuum_server.virtual.offload import read_offload
from continuum_traces.importers.registry import read_any
from continuum_traces.playing.conversation import Job, Sends
from continuum_traces.playing.sub_programs import parents_of
from continuum_traces.programs.synth import Spread, load_profile, synthesize
from continuum_traces.schema import Program, ToolCall, Turn

BLOCK, MIX_BLOCK = 64, 16
"""Tokens of a KV block, and in ``mixes``."""
GPUS = {"h100": "h100-80gb", "a100": "a100-80gb", "h200": "h200-141gb", "b200": "b200-180gb"}
LARGEST = 60_000
"""Tokens of the largest program that is drawn."""
SESSIONS = 24
"""Recorded sessions of a cell."""
MOST_GAP_S = 60.0
"""Longest pause of a recorded session. In some, people went away."""

Tools = Callable[[random.Random], tuple[str, float]]
"""Draws a tool's name and how many seconds it takes."""


def _lognormal(chance: random.Random, median: float, sigma: float) -> float:
    return median * math.exp(chance.gauss(0.0, sigma))


def _one_tool(median_s: float, sigma: float, chance: random.Random) -> tuple[str, float]:
    return "bash", _lognormal(chance, median_s, sigma)


def _named(seconds: Mapping[str, float], chance: random.Random) -> tuple[str, float]:
    """Of five calls two read. The tool's name says how long it takes."""
    name = chance.choice(("read", *seconds))
    return name, _lognormal(chance, seconds[name], 0.15)


def _rarely_long(chance: random.Random) -> tuple[str, float]:
    return "bash", 0.4 if chance.random() < 0.75 else _lognormal(chance, 45.0, 0.3)


TOOLS: dict[str, Tools] = {
    "quick": partial(_one_tool, 0.35, 0.8),
    "coding": partial(_one_tool, 1.5, 1.2),
    "search": partial(_one_tool, 2.0, 0.8),
    "steady": partial(_one_tool, 6.0, 0.5),
    "person": partial(_one_tool, 25.0, 1.0),
    "sub-agent": lambda chance: ("Task", 15.0),
    "named": partial(_named, {"read": 0.1, "edit": 0.3, "build": 12.0, "test": 75.0}),
    "named-short": partial(_named, {"read": 0.1, "edit": 0.3, "build": 6.0, "test": 30.0}),
    "rarely-long": _rarely_long,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs of one kind."""

    number: int
    turns: tuple[int, int]
    """Fewest and most."""
    tokens: float
    """Median of the final contexts."""
    sigma: float = 0.15
    """Of the logarithm of the final contexts."""
    first: float = 0.3
    """Part of the final context that is the first prompt."""
    output: int = 30
    """Median tokens of an answer."""
    tools: str = "quick"
    prefix: str | None = None
    """Name of the shared system prompt, of 3,600 tokens."""
    subs: tuple[int, ...] = ()
    """After these turns two sub-agents start."""
    kept: float = 1.0
    """Part of the history that each third turn repeats."""
    tagged: bool = True
    name: str = "p"

    def programs(self, chance: random.Random) -> list[Program]:
        return [each for index in range(self.number) for each in self._family(f"{self.name}{index:02d}", chance)]

    def _family(self, name: str, chance: random.Random) -> list[Program]:
        """Return a program and its sub-agents."""
        tokens = min(max(_lognormal(chance, self.tokens, self.sigma), 1500.0), LARGEST)
        family = [self._program(name, tokens, chance)]
        for turn in self.subs:
            sub = replace(self, turns=(3, 5), tokens=9000.0, first=0.5, tools="quick", subs=(), prefix=None)
            for number in range(2):
                child = sub._program(f"{name}-{turn}{number}", 9000.0, chance)
                family.append(replace(child, parent_id=name, parent_turn=turn))
        return family

    def _program(self, name: str, tokens: float, chance: random.Random) -> Program:
        number, first = chance.randint(*self.turns), max(200.0, tokens * self.first)
        outputs = [max(1, round(_lognormal(chance, self.output, 0.5))) for _ in range(number)]
        weights = [_lognormal(chance, 1.0, 0.6) for _ in range(1, number)]
        growth = max(30.0 * number, tokens - first - sum(outputs)) / (sum(weights) or 1.0)
        new = [round(first), *(max(1, round(weight * growth)) for weight in weights)]
        turns, context = [], 0
        for index, (tokens_in, tokens_out) in enumerate(zip(new, outputs, strict=True)):
            tool = TOOLS["sub-agent" if index in self.subs else self.tools](chance)
            calls = (ToolCall(tool[0], round(tool[1], 3)),) if index < number - 1 else ()
            kept = round(self.kept * context) if self.kept < 1.0 and index % 3 == 2 else None
            turns.append(Turn(tokens_in, tokens_out, kept_tokens=kept, tool_calls=calls))
            context = (context if kept is None else kept) + tokens_in + tokens_out
        prefix = {} if self.prefix is None else {"shared_prefix_id": self.prefix, "shared_prefix_tokens": 3600}
        return Program(name, tuple(turns), synthetic=True, tagged=self.tagged, **prefix)


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs in the order of their arrival, and the engine that serves them."""

    programs: Sequence[Program]
    config: EngineConfig
    arrivals: str = "poisson"
    jps: float = 1.0
    sends: Sends = "full"

    def jobs(self, seed: int) -> list[Job]:
        """Return the programs with their arrivals. Sub-agents start when their parent's turn has ended."""
        children = parents_of(list(self.programs))
        roots = [each for number, each in enumerate(self.programs) if number not in children]
        times = arrival_times(self.arrivals)(np.random.default_rng(seed), self.jps, roots)
        at_s = {root.program_id: float(time_s) for root, time_s in zip(roots, times, strict=True)}
        return [Job(each, at_s.get(each.program_id, 0.0), sends=self.sends) for each in self.programs]

    @property
    def lanes(self) -> Any:
        return lanes_of(self.arrivals)


Cell = Callable[[int], Workload]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A cell whose programs are of these kinds."""

    kinds: tuple[Kind, ...]
    pool: int
    """Tokens of the KV pool."""
    jps: float
    gpu: str = "h100"
    tiers: str | None = None
    arrivals: str = "poisson"
    sends: Sends = "full"

    def __call__(self, seed: int) -> Workload:
        chance = random.Random(f"{self} {seed}")
        families = [each for kind in self.kinds for each in kind.programs(chance)]
        return Workload(_shuffled(families, chance), self.config(), self.arrivals, self.jps, self.sends)

    def config(self) -> EngineConfig:
        gpu = GPUS[self.gpu]
        tiers = None if self.tiers is None else read_offload(self.tiers, gpu)
        return EngineConfig(gpu=gpu, kv_blocks=self.pool // BLOCK, block_size=BLOCK, offload=tiers)


def _shuffled(programs: Sequence[Program], chance: random.Random) -> list[Program]:
    shuffled = list(programs)
    chance.shuffle(shuffled)
    return shuffled


_GIANTS = (
    Kind(5, (20, 20), 60_000, 0.02, 0.3, 40, name="giant"),
    Kind(45, (3, 6), 6_000, 0.02, 0.3, 30, name="small"),
)
_CODING = Kind(26, (9, 14), 36_000, 0.3, 0.35, 40, "coding")
PRESSED: dict[str, Recipe] = {
    "uniform": Recipe((Kind(28, (8, 12), 24_000, 0.15, 0.2),), 90_000, 1.2),
    "lognormal": Recipe((Kind(32, (5, 14), 18_000, 0.9, 0.2),), 90_000, 1.4),
    "named-tools": Recipe((Kind(28, (8, 12), 24_000, 0.2, 0.3, 30, "named"),), 110_000, 0.5),
    "rarely-long": Recipe((Kind(28, (8, 12), 24_000, 0.2, 0.3, 30, "rarely-long"),), 110_000, 0.6),
    "giants": Recipe(_GIANTS, 130_000, 4.0),
    "two-kinds": Recipe(
        (
            Kind(11, (10, 14), 40_000, 0.1, 0.1, prefix="large", name="large"),
            Kind(21, (3, 5), 8_500, 0.1, 0.47, prefix="small", name="small"),
        ),
        100_000,
        1.4,
    ),
    "coding-dram": Recipe((_CODING,), 120_000, 0.8, tiers="dram-100"),
    "giants-dram": Recipe(_GIANTS, 130_000, 4.0, tiers="dram-100"),
    "large-first": Recipe((Kind(32, (3, 5), 22_000, 0.3, 0.8, 40, "search"),), 100_000, 1.4),
    "sub-agents": Recipe((Kind(14, (8, 8), 22_000, 0.1, 0.3, subs=(2, 5)),), 90_000, 0.6),
    "overload": Recipe((replace(_CODING, number=36),), 120_000, 0.6),
    "growers": Recipe((Kind(48, (12, 18), 26_000, 0.2, 0.05, 30, "steady"),), 110_000, 0.12),
    "named-a100": Recipe((Kind(32, (7, 10), 30_000, 0.2, 0.4, 25, "named-short"),), 110_000, 1.5, "a100"),
}


UNMARKED: dict[str, Cell] = {name: replace(cell, sends="no-last") for name, cell in PRESSED.items()}


def drawn(number: int, seed: int) -> Workload:
    """Return workload ``number`` of a draw: memory is short in five of six, sub-agents are in a quarter, large first
    prompts in a quarter, tiers in a third; every fourth client marks no end."""
    chance = random.Random(f"draw {number}")
    kinds = tuple(_drawn_kind(chance, number, part) for part in range(chance.choice((1, 1, 2))))
    recipe = Recipe(
        kinds,
        0,
        1.0,
        gpu=chance.choice(("h100", "h100", "a100", "h200")),
        tiers=chance.choice((None, None, "dram-20", "dram-100", None, "dram-20+ssd-200")),
        arrivals=chance.choice(("poisson", "poisson", "gamma:3")),
        sends="no-last" if chance.random() < 0.25 else "full",
    )
    fits, load = chance.uniform(2.0, 6.0), chance.uniform(1.0, 4.0)
    programs = recipe(0).programs
    sizes = [each.final_context_tokens for each in programs]
    pool = int(max(1.25 * max(sizes), mean(sizes) * (fits if number % 6 else 20.0)))
    config = replace(recipe, pool=pool).config()
    jps = load * sustained(programs, config)
    return Workload(programs, config, recipe.arrivals, jps, recipe.sends)


def _drawn_kind(chance: random.Random, number: int, part: int) -> Kind:
    turns = chance.choice(((3, 6), (6, 12), (10, 16)))
    return Kind(
        chance.randint(8, 20),
        turns,
        chance.choice((6_000, 12_000, 20_000, 32_000)),
        chance.choice((0.15, 0.4, 0.9)),
        chance.uniform(0.6, 0.9) if number % 4 == 1 else chance.uniform(0.05, 0.4),
        chance.choice((20, 40, 80)),
        chance.choice(("quick", "quick", "coding", "search", "named-short", "rarely-long")),
        subs=(1,) if number % 4 == 2 and part == 0 else (),
        name="pq"[part],
    )


def sustained(programs: Sequence[Program], config: EngineConfig) -> float:
    """Return the programs per second that the engine could serve if it never lost KV."""
    settings = settings_of(config, "vllm", {})
    assert settings.decode is not None
    assert config.kv_blocks is not None
    token_s = settings.decode.full_token_s(config.kv_blocks * config.block_size)

    def work_s(program: Program) -> float:
        turns = zip(program.turns, program.prompt_tokens(), strict=True)
        read = sum(turn.output_tokens * (prompt + turn.output_tokens / 2) for turn, prompt in turns)
        return settings.prefill.seconds(program.final_context_tokens) + read * token_s

    return 1.0 / mean(map(work_s, programs))


def at_a_time(agents: int, seed: int, sends: Sends = "full") -> Workload:
    """Return agents of which about eight fit into the pool, so many at a time."""
    programs = synthesize(load_profile("swebench"), max(24, 2 * agents), seed, length_scale=0.25)
    config = EngineConfig(gpu=GPUS["h100"], kv_blocks=6_900 * 16 // BLOCK, block_size=BLOCK)
    return Workload(programs, config, f"concurrency:{agents}", sends=sends)


AGENTS: dict[str, Cell] = {
    **{f"{number}-at-a-time": partial(at_a_time, number) for number in (8, 12, 16, 24, 32, 64)},
    "16-at-a-time-no-ends": partial(at_a_time, 16, sends="no-last"),
}


def _giants(turns: Spread | None, first: float, seed: int) -> Workload:
    swebench = load_profile("swebench")
    tokens = Spread(55_000, 2000, 50_000, 59_000)
    giant = replace(swebench, turns=turns or swebench.turns, tokens=tokens, first_prompt_weight=first)
    small = synthesize(swebench, 36, seed, length_scale=0.06)
    programs = [replace(each, program_id=f"small-{n}") for n, each in enumerate(small)]
    large = synthesize(giant, 4, seed)
    programs += [replace(each, program_id=f"giant-{n}") for n, each in enumerate(large)]
    config = EngineConfig(gpu=GPUS["h100"], kv_blocks=112_000 // BLOCK, block_size=BLOCK)
    return Workload(_shuffled(programs, random.Random(seed)), config, jps=2.0)


def _chats(seed: int, sends: Sends = "full") -> Workload:
    chats = [replace(each, program_id=f"chat-{n}") for n, each in enumerate(synthesize(load_profile("chat"), 60, seed))]
    agents = replace(_CODING, number=14).programs(random.Random(seed))
    config = EngineConfig(gpu=GPUS["h100"], kv_blocks=110_000 // BLOCK, block_size=BLOCK)
    return Workload(_shuffled([*chats, *agents], random.Random(seed)), config, jps=3.0, sends=sends)


BESIDE: dict[str, Cell] = {
    "giants-large-first": partial(_giants, None, 12.0),
    "giants-30-turns": partial(_giants, Spread(30, 2, 3, 60), 4.0),
    "chats-and-agents": _chats,
    "coding-dram-ssd": Recipe((_CODING,), 100_000, 0.8, tiers="dram-20+ssd-200"),
}
UNTAGGED: dict[str, Cell] = {
    "chats": partial(_chats, sends="none"),
    "agents": Recipe((replace(_CODING, tagged=False),), 120_000, 0.8, sends="none"),
    "16-at-a-time": partial(at_a_time, 16, sends="none"),
}
HELD_OUT: dict[str, Cell] = {
    "rewritten": Recipe((Kind(24, (9, 14), 40_000, 0.3, 0.3, kept=0.67),), 80_000, 1.0),
    "bursts": Recipe((Kind(30, (4, 9), 16_000, 0.4, 0.3),), 80_000, 1.2, arrivals="gamma:5"),
    "untagged": Recipe((Kind(24, (6, 10), 20_000, 0.2, 0.25, tagged=False),), 90_000, 1.2, sends="none"),
    "people": Recipe((Kind(30, (5, 8), 22_000, 0.3, 0.4, 40, "person"),), 110_000, 0.4),
    "one-prefix": Recipe((Kind(30, (5, 9), 15_000, 0.3, 0.3, prefix="all"),), 80_000, 1.4),
    "ramp": Recipe((Kind(30, (6, 12), 22_000, 0.5, 0.2, 60, "coding"),), 100_000, 0.8, arrivals="ramp:4"),
    "trees": Recipe((Kind(10, (6, 6), 26_000, 0.2, 0.4, 40, "coding", subs=(1, 3)),), 90_000, 0.4, "a100"),
}


def mix(seed: int) -> Workload:
    """Return agents beside streams of thousands of tokens, all of one honest key, on a pool that is too small."""
    chance = random.Random(f"mix {seed}")
    streams = [
        Program(f"stream-{n}", (Turn(chance.randint(50, 2000), chance.randint(3000, 9000)),), arrival_s=at_s)
        for n in range(chance.randint(1, 3))
        for at_s in [chance.uniform(0.0, 20.0)]
    ]
    shape = Kind(1, chance.choice(((2, 4), (4, 8))), chance.choice((2500, 5000, 9000)), 0.4, chance.uniform(0.2, 0.8))
    apart_s = chance.uniform(0.2, 3.0)
    agents = [
        replace(replace(shape, name=f"agent-{n}-").programs(chance)[0], arrival_s=2.0 + n * apart_s)
        for n in range(chance.randint(8, 16))
    ]
    largest = max(each.final_context_tokens for each in (*streams, *agents))
    blocks = int(max(1200, 1.1 * largest / MIX_BLOCK)) + 1
    config = EngineConfig(gpu=GPUS["a100"], kv_blocks=blocks, block_size=MIX_BLOCK)
    return Workload(sorted([*streams, *agents], key=lambda each: each.arrival_s or 0.0), config, "recorded:1")


def _capped(program: Program) -> Program:
    """Return the program without longer pauses than ``MOST_GAP_S``."""
    turns = tuple(
        replace(
            turn,
            gap_overhead_s=min(turn.gap_overhead_s, MOST_GAP_S),
            tool_calls=tuple(
                replace(call, duration_s=min(call.duration_s or 0.0, MOST_GAP_S)) for call in turn.tool_calls
            ),
        )
        for turn in program.turns
    )
    return replace(program, turns=turns)


def recorded(file: Path, agents: int, seed: int) -> Workload:
    """Return the sessions of a file that fit the model, so many at a time, on a whole H100."""
    config = EngineConfig(gpu=GPUS["h100"], block_size=BLOCK)
    programs = [_capped(each) for each in read_any(file) if each.final_context_tokens <= 130_000]
    return Workload(_shuffled(programs, random.Random(seed))[:SESSIONS], config, f"concurrency:{agents}")


@dataclass(frozen=True)
class Sets:
    """The sets by name, each a dictionary of its cells."""

    draws: int = 60
    mixes: int = 12
    traces: Path | None = None
    cells: dict[str, dict[str, Cell]] = field(init=False)

    def __post_init__(self) -> None:
        drawn_cells: dict[str, Cell] = {
            f"draw-{number:02d}": partial(lambda n, seed: drawn(n, seed), number) for number in range(self.draws)
        }
        mixes: dict[str, Cell] = {
            f"mix-{number:02d}": partial(lambda n, _: mix(n), number) for number in range(self.mixes)
        }
        files = [] if self.traces is None else sorted(self.traces.glob("*.jsonl.gz"))
        sessions: dict[str, Cell] = {each.name.split(".")[0]: partial(recorded, each, 16) for each in files}
        object.__setattr__(
            self,
            "cells",
            {
                "pressed": {**PRESSED},
                "unmarked": UNMARKED,
                "draw": drawn_cells,
                "agents": AGENTS,
                "beside": BESIDE,
                "untagged": UNTAGGED,
                "held-out": HELD_OUT,
                "mixes": mixes,
                "recorded": sessions,
            },
        )
