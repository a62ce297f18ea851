"""Generate synthetic programs from a profile, a small file of statistics without text (docs/trace-format.md).

Turns, tool times and tokens are drawn by stratified sampling: one value from each of n equal slices of probability, in
random order. A set of n programs therefore has the means and deviations of the profile, tails included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from continuum_traces.grouped import grouped
from continuum_traces.names import which
from continuum_traces.programs.jsonl import TraceError, read_programs
from continuum_traces.schema import Program, ToolCall, Turn
from continuum_traces.typed import from_json

Reading = Literal["context", "cumulative"]
Floats = NDArray[np.float64]

PROFILES = ("swebench", "bfcl", "openhands", "claude-code", "long-prompts", "chat")
BUNDLED = ("swebench", "bfcl")


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution: its mean, its standard deviation, and limits to which values are clipped."""

    mean: float
    std: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class ToolProfile:
    """The times (ms) of one tool: log-normal, and for a share of the calls (the tail) log-normal with another mean."""

    name: str
    share: float
    """Share of all tool calls."""
    body_mean_ms: float
    body_std_ms: float
    tail_share: float = 0.0
    tail_mean_ms: float = 0.0
    tail_std_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """Statistics of a workload."""

    name: str
    source: str
    turns: Spread
    tokens: Spread
    """Tokens per program, in the reading that is passed to ``synthesize``."""
    tools: tuple[ToolProfile, ...]
    output_tokens: Spread
    """Tokens generated per turn, reasoning included."""
    reasoning_share: float
    """Share of the generated tokens that the next prompt does not repeat."""
    first_prompt_weight: float
    """The first prompt's length, as a multiple of the mean new input of later turns."""
    shared_prefix_tokens: int
    """Leading tokens that are the same in every program (a system prompt)."""
    assumptions: str = ""
    prompt_tokens: Spread | None = None
    """The prompts of programs of one turn. Not None: ``tokens`` is not used."""
    tagged: bool = True
    """Whether requests name their program (``Program.tagged``)."""


def load_profile(name_or_path: str) -> WorkloadProfile:
    """Load a bundled profile by its name, or a profile from a file.

    Raises:
        TraceError: there is no such profile, or the file is not a profile.
    """
    if name_or_path in PROFILES:
        text = (files("continuum_traces") / "profiles" / f"{name_or_path}.json").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except OSError as error:
            raise TraceError(f"{name_or_path}: no profile of that name; {which(name_or_path, PROFILES)}") from error
        except ValueError as error:
            raise TraceError(f"{name_or_path}: not a profile: {error}") from error
    try:
        return from_json(WorkloadProfile, json.loads(text))
    except ValueError as error:
        raise TraceError(f"{name_or_path}: not a profile: {error}") from error


def bundled(name: str) -> Iterator[Program]:
    """Read a bundled set of 100 synthetic programs (context reading); docs/trace-format.md says how they were made.

    Raises:
        TraceError: there is no bundled set of that name.
    """
    if name not in BUNDLED:
        raise TraceError(f"no bundled set {name!r}; {which(name, BUNDLED)}")
    return read_programs(bundled_path(name))


def bundled_path(name: str) -> Path:
    return Path(str(files("continuum_traces") / "bundled" / f"{name}-100.jsonl.gz"))


def synthesize(
    profile: WorkloadProfile,
    num_programs: int,
    seed: int,
    reading: Reading = "context",
    length_scale: float = 1.0,
) -> list[Program]:
    """Draw programs from a profile. Equal arguments give equal programs.

    Args:
        profile: the statistics.
        num_programs: number of programs.
        seed: seed of the random numbers.
        reading: whether the profile's tokens per program mean the final context or the sum over turns.
        length_scale: factor for every length (the papers scale BFCL by 0.4).
    """
    rng = np.random.default_rng(seed)
    turns = np.rint(_normal(_uniforms(rng, num_programs), profile.turns)).astype(int)
    tokens = _lognormal_within(_uniforms(rng, num_programs), profile.tokens)
    total = int(turns.sum())
    outputs = _lognormal_within(_uniforms(rng, total), profile.output_tokens)
    calls = _tool_calls(rng, profile, total)
    weights = rng.gamma(1.0, 1.0, total)
    prompts = None if profile.prompt_tokens is None else _lognormal_within(_uniforms(rng, total), profile.prompt_tokens)
    programs, first = [], 0
    for number in range(num_programs):
        part = slice(first, first + int(turns[number]))
        first = part.stop
        weights[part.start] = profile.first_prompt_weight
        if prompts is not None:
            inputs, generated = prompts[part], outputs[part]
        else:
            inputs, generated = _fit_lengths(weights[part], outputs[part], float(tokens[number]), profile, reading)
        programs.append(_program(profile, number, inputs, generated, calls[part], length_scale))
    return programs


def _program(
    profile: WorkloadProfile, number: int, inputs: Floats, outputs: Floats, calls: Sequence[ToolCall], scale: float
) -> Program:
    turns = []
    for index, (new, generated) in enumerate(zip(inputs, outputs, strict=True)):
        output = max(1, round(float(generated) * scale))
        last = index == len(inputs) - 1
        turns.append(
            Turn(
                new_input_tokens=max(1, round(float(new) * scale)),
                output_tokens=output,
                carried_tokens=max(1, round(output * (1 - profile.reasoning_share))),
                tool_calls=() if last or not calls else (calls[index],),
            )
        )
    prefix = min(round(profile.shared_prefix_tokens * scale), turns[0].new_input_tokens)
    return Program(
        program_id=f"{profile.name}-{number:04d}",
        turns=tuple(turns),
        source=f"synthetic:{profile.name}",
        synthetic=True,
        shared_prefix_id=f"{profile.name}-system" if prefix else None,
        shared_prefix_tokens=prefix,
        tagged=profile.tagged,
    )


def mix(parts: Mapping[str, tuple[float, Sequence[Program]]], number: int, seed: int) -> list[Program]:
    """Return a workload of several kinds of programs in random order, with their kinds as metadata ``kind``.

    Args:
        parts: each kind's share of the programs, and the programs to take; they are repeated if they are too few.
        number: number of programs.
        seed: seed of the order.
    """
    counts = _shares(number, [share for share, _ in parts.values()])
    programs = []
    for (kind, (_, given)), count in zip(parts.items(), counts, strict=True):
        for index in range(count):
            round_, at = divmod(index, len(given))
            name = given[at].program_id + (f"#{round_}" if round_ else "")
            metadata = {**(given[at].metadata or {}), "kind": kind}
            programs.append(replace(given[at], program_id=name, metadata=metadata))
    return [programs[at] for at in np.random.default_rng(seed).permutation(number)]


def _fit_lengths(
    weights: Floats, outputs: Floats, target: float, profile: WorkloadProfile, reading: Reading
) -> tuple[Floats, Floats]:
    """Return each turn's new input and generated tokens, so that the program has ``target`` tokens in ``reading``.

    Both readings are linear in the lengths. The inputs get the tokens that remain after the outputs and the system
    prompt. Outputs, and the system prompt, are reduced to half of the target if they are longer.
    """
    n = len(weights)
    later = np.arange(n, 0, -1) if reading == "cumulative" else np.ones(n)
    carried = 1 - profile.reasoning_share
    of_output = carried * (later - 1) + 1 if reading == "cumulative" else np.r_[np.full(n - 1, carried), 1.0]
    prefix = min(profile.shared_prefix_tokens, 0.5 * target / float(later[0]))
    from_outputs = float((outputs * of_output).sum())
    shrink = min(1.0, 0.5 * target / from_outputs)
    left = target - shrink * from_outputs - prefix * float(later[0])
    inputs = weights * (left / float((weights * later).sum()))
    inputs[0] += prefix
    return inputs, outputs * shrink


def _uniforms(rng: np.random.Generator, n: int) -> Floats:
    """Draw one point in each of n equal slices of (0, 1), in random order."""
    return np.asarray((rng.permutation(n) + rng.uniform(0.05, 0.95, n)) / n)


def _normal(uniforms: Floats, spread: Spread) -> Floats:
    return np.asarray(np.clip(spread.mean + spread.std * ndtri(uniforms), spread.least, spread.most))


def _lognormal(rng: np.random.Generator, n: int, mean: float, std: float) -> Floats:
    return _lognormal_at(_uniforms(rng, n), mean, std) if n and std > 0.0 else np.full(n, mean)


def _lognormal_at(uniforms: Floats, mean: float, std: float) -> Floats:
    sigma2 = np.log1p((std / mean) ** 2)
    return np.asarray(np.exp(np.log(mean) - sigma2 / 2 + np.sqrt(sigma2) * ndtri(uniforms)))


def _lognormal_within(uniforms: Floats, spread: Spread) -> Floats:
    """Return log-normal values within the limits, whose mean and deviation after clipping are those of ``spread``."""
    if spread.std <= 0.0:
        return np.full(len(uniforms), spread.mean)
    mean, std = spread.mean, spread.std
    values = np.empty(0)
    for _ in range(12):
        values = np.clip(_lognormal_at(uniforms, mean, std), spread.least, spread.most)
        mean *= spread.mean / float(values.mean())
        std *= min(max(spread.std / max(float(values.std()), 1e-9), 0.5), 2.0)
    return values


def _tool_calls(rng: np.random.Generator, profile: WorkloadProfile, n: int) -> list[ToolCall]:
    """Draw n calls in random order. Each tool has its share of the calls, and its tail the tail's share of them."""
    if not profile.tools:
        return []
    counts = _shares(n, [tool.share for tool in profile.tools])
    calls: list[ToolCall] = []
    for tool, count in zip(profile.tools, counts, strict=True):
        tail = round(count * tool.tail_share)
        body_ms = _lognormal(rng, count - tail, tool.body_mean_ms, tool.body_std_ms)
        tail_ms = _lognormal(rng, tail, tool.tail_mean_ms, tool.tail_std_ms)
        calls += [ToolCall(tool.name, round(float(ms) / 1e3, 6)) for ms in np.concatenate([body_ms, tail_ms])]
    return [calls[i] for i in rng.permutation(n)]


def _shares(n: int, shares: Sequence[float]) -> list[int]:
    """Split n into whole numbers in proportion to the shares."""
    ends = [round(n * end) for end in np.cumsum(shares) / sum(shares)]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def scale_turns(program: Program, k: int) -> Program:
    """Repeat the program's turns k times and divide their lengths by k, as v4 (Figure 14) does: the context stays."""
    shorter = scale_lengths(program, 1 / k)
    *turns, last = (replace(turn, kept_tokens=None) for turn in shorter.turns)
    calls = next((turn.tool_calls for turn in reversed([*turns, last]) if turn.tool_calls), ())
    repeated = (*turns, replace(last, tool_calls=calls)) * (k - 1)
    return replace(shorter, turns=(*repeated, *turns, last), source=f"{program.source} x{k}")


SUMMARY_TOKENS = 2000
"""Length of the summary that replaces a history."""


def compact(program: Program, most_tokens: int) -> Program:
    """Return the program as if its agent had summarised its history whenever the context exceeded ``most_tokens``: the
    next prompt is the first prompt, a summary, and the turn's new input."""
    first, turns, context = program.turns[0].new_input_tokens, [], 0
    for turn in program.turns:
        if context > most_tokens:
            turn = replace(turn, kept_tokens=first, new_input_tokens=SUMMARY_TOKENS + turn.new_input_tokens)
        kept = context if turn.kept_tokens is None else min(context, turn.kept_tokens)
        context = kept + turn.new_input_tokens + turn.carried
        turns.append(turn)
    return replace(program, turns=tuple(turns), source=f"{program.source}, compacted at {most_tokens} tokens")


def put_behind(programs: Sequence[Program], tokens: int) -> list[Program]:
    """Put a prefix of ``tokens`` tokens, the same for all programs, before each program.

    A prefix that all programs shared before stays shared. A prefix that only some programs shared is no longer shared.
    """
    all_shared = len({program.shared_prefix_id for program in programs}) == 1

    def behind(program: Program) -> Program:
        first, *later = program.turns
        later = [
            turn if turn.kept_tokens is None else replace(turn, kept_tokens=turn.kept_tokens + tokens) for turn in later
        ]
        return replace(
            program,
            turns=(replace(first, new_input_tokens=first.new_input_tokens + tokens), *later),
            source=f"{program.source}, behind {tokens} shared tokens",
            shared_prefix_id=f"{tokens} tokens",
            shared_prefix_tokens=tokens + (program.shared_prefix_tokens if all_shared else 0),
        )

    return [behind(program) for program in programs]


def scale_lengths(program: Program, factor: float) -> Program:
    """Multiply every length of the program by ``factor``."""

    def at_least_one(tokens: int) -> int:
        return max(1, round(tokens * factor))

    def optional(tokens: int | None) -> int | None:
        return None if tokens is None else round(tokens * factor)

    turns = tuple(
        replace(
            turn,
            new_input_tokens=at_least_one(turn.new_input_tokens),
            output_tokens=at_least_one(turn.output_tokens),
            carried_tokens=optional(turn.carried_tokens),
            kept_tokens=optional(turn.kept_tokens),
        )
        for turn in program.turns
    )
    prefix = min(round(program.shared_prefix_tokens * factor), turns[0].new_input_tokens)
    return replace(program, turns=turns, source=f"{program.source}, lengths x {factor:g}", shared_prefix_tokens=prefix)


def fit(programs: Iterable[Program], name: str, reading: Reading = "context") -> WorkloadProfile:
    """Make a profile of the programs. A profile holds statistics, no text and no ids.

    Raises:
        TraceError: fewer than two programs.
    """
    kept = list(programs)
    if len(kept) < 2:
        raise TraceError("a profile needs at least two programs")
    sizes = [p.final_context_tokens if reading == "context" else p.cumulative_tokens for p in kept]
    turns = [turn for program in kept for turn in program.turns]
    generated = sum(turn.output_tokens for turn in turns)
    later = [turn.new_input_tokens for program in kept for turn in program.turns[1:]] or [1]
    first = [program.turns[0].new_input_tokens for program in kept]
    return WorkloadProfile(
        name=name,
        source=f"fitted to {len(kept)} programs, {len(turns)} turns; {reading} reading",
        turns=_spread([len(program.turns) for program in kept]),
        tokens=_spread(sizes),
        tools=_fit_tools(kept),
        output_tokens=_spread([turn.output_tokens for turn in turns]),
        reasoning_share=1 - sum(turn.carried for turn in turns) / generated,
        first_prompt_weight=float(np.mean(first) / max(1.0, float(np.mean(later)))),
        shared_prefix_tokens=min((program.shared_prefix_tokens for program in kept), default=0),
    )


def _spread(values: Sequence[float]) -> Spread:
    array = np.asarray(values, dtype=float)
    return Spread(float(array.mean()), float(array.std()), float(array.min()), float(array.max()))


def _fit_tools(programs: Sequence[Program], most: int = 12) -> tuple[ToolProfile, ...]:
    """Describe the ``most`` most frequent tools by name and all others as the tool ``other``. The slowest tenth of a
    tool's calls is its tail."""
    turns = [turn for program in programs for turn in program.turns[:-1]]
    times = grouped((_longest_tool(turn), turn.gap_s * 1e3) for turn in turns)
    common = sorted(times, key=lambda name: -len(times[name]))[:most]
    described = {name: times[name] for name in common}
    other = [ms for name, values in times.items() if name not in common for ms in values]
    if other:
        described["other"] = described.get("other", []) + other
    total = sum(len(values) for values in times.values())
    return tuple(_fit_tool(name, values, total) for name, values in described.items())


def _longest_tool(turn: Turn) -> str:
    return max(turn.tool_calls, key=lambda call: call.duration_s or 0.0).name if turn.tool_calls else "none"


def _fit_tool(name: str, values_ms: list[float], total: int) -> ToolProfile:
    ordered = np.sort(np.asarray(values_ms)) + 1e-3
    tail = len(ordered) // 10
    body, slow = ordered[: len(ordered) - tail], ordered[len(ordered) - tail :]
    return ToolProfile(
        name,
        len(ordered) / total,
        float(body.mean()),
        float(body.std()),
        tail / len(ordered),
        float(slow.mean()) if tail else 0.0,
        float(slow.std()) if tail else 0.0,
    )
