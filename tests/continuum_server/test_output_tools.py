"""Stop strings as the engine finds them in an output, with the tokenizer of our local models."""

from __future__ import annotations

import pytest
from continuum_server.local_model import TINY, ensure_model
from continuum_server.vllm_plugin.output_tools import TAIL_TOKENS, OutputTools
from transformers import AutoTokenizer
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request


@pytest.fixture(scope="module")
def reader() -> OutputTools:
    made = OutputTools.__new__(OutputTools)
    made._tokenizer = AutoTokenizer.from_pretrained(ensure_model(TINY))
    return made


def stop_of(reader: OutputTools, prompt: str, output: str, min_tokens: int = 0, later: int = 0) -> str | None:
    """What ended an output, behind which so many tokens more came."""
    encode = reader._tokenizer.encode
    params = SamplingParams(stop=["END"], min_tokens=min_tokens, max_tokens=9000)
    request = Request("r", encode(prompt), params, None)
    request.append_output_token_ids([*encode(output, add_special_tokens=False), *[encode("a")[-1]] * later])
    return reader.stop_string(request)


@pytest.mark.parametrize(
    ("prompt", "output", "stop"),
    [
        ("go on", "so it is END", "END"),
        ("go on", "so it is EN", None),
        ("the END", "goes on", None),  # it is the prompt's
        ("the EN", "D", None),  # half of it is
        ("", "END", "END"),
    ],
)
def test_only_the_output_s_own_text_counts(reader: OutputTools, prompt: str, output: str, stop: str | None) -> None:
    assert stop_of(reader, prompt, output) == stop


def test_vllm_ignores_stop_strings_before_min_tokens(reader: OutputTools) -> None:
    count = len(reader._tokenizer.encode("END", add_special_tokens=False))
    assert [stop_of(reader, "go", "END", least, later=9) for least in (0, count)] == ["END", None]


def test_the_end_of_an_output_is_read(reader: OutputTools) -> None:
    count = len(reader._tokenizer.encode("END", add_special_tokens=False))
    later = TAIL_TOKENS - count
    assert [stop_of(reader, "go", "END", later=more) for more in (later, later + 1)] == ["END", None]
