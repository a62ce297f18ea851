"""The times of a program's turns on an empty engine. A program's slowdown is relative to these times."""

from __future__ import annotations

from continuum_traces.schema import Program

from continuum_server.step_times.model import PrefillChunk, StepTimes


def alone_turns_s(
    program: Program, times: StepTimes, chunk_tokens: int, block_size: int, hits_answers: bool = True
) -> list[float]:
    """Return the seconds of each turn from its arrival to its end, with no other program on the engine.

    The prefix cache is empty at the first turn. Each later turn hits the full blocks of the program's earlier turns;
    without ``hits_answers`` those of their prompts, because vLLM keeps no states and windows behind a prompt's end.
    The pool must be large enough for the program's longest turn.
    """
    turns, prompts = program.turns, program.prompt_tokens()
    answers = [turn.output_tokens if hits_answers else 0 for turn in turns]
    computed = [0] + [prompt + answer - 1 for prompt, answer in zip(prompts, answers, strict=True)]
    turns_s = []
    for index, (turn, prompt, reusable) in enumerate(zip(turns, prompts, program.reusable_tokens(), strict=True)):
        hit = min(reusable if index else 0, computed[index], prompt - 1) // block_size * block_size
        decode_s = times.answer_s(prompt + 1, turn.output_tokens - 1) if turn.output_tokens > 1 else 0.0
        turns_s.append(times.request_s(prompt) + prefill_s(times, prompt, hit, chunk_tokens) + decode_s)
    return turns_s


def prefill_s(times: StepTimes, prompt: int, done: int, chunk_tokens: int) -> float:
    """Return the seconds to compute a prompt of which ``done`` tokens are in KV, in chunks, on an empty engine."""
    seconds = 0.0
    while done < prompt:
        chunk = min(chunk_tokens, prompt - done)
        seconds += times.step_s((PrefillChunk(chunk, done),), 0, 0)
        done += chunk
    return seconds
