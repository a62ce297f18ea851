"""Read a finished turn's output in the engine core: the tool that it calls, and the stop string that ended it.

Both are at the end of an output, so each turn costs one detokenisation and one parse of ``TAIL_TOKENS`` tokens.
"""

from __future__ import annotations

import logging
from typing import Any

from continuum_traces.shell import first_program
from vllm.v1.request import Request

from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.tool_calls import first_word, openai_key, tool_key

logger = logging.getLogger("continuum")

TAIL_TOKENS = 2048
CONTEXT_TOKENS = 6
"""Number of prompt tokens that are decoded before the output, as in vLLM's own detokenizer."""


class OutputTools:
    """A function that returns the key of the tool that a finished request calls, or None. Never raises an exception.

    Args:
        vllm_config: vLLM's configuration. A server without a tokenizer reads no outputs.
        parser: name of vLLM's tool-call parser, which is tried first; None: only ``vllm_plugin.tool_calls`` is used.
        first_words: see ``Policy.first_words``.
    """

    def __init__(self, vllm_config: Any, parser: str | None = None, first_words: bool = False) -> None:
        self._command_key = first_word if first_words else first_program
        self._tokenizer = touch_points.tokenizer_of(vllm_config)
        self._parser: Any = None
        if parser is not None and self._tokenizer is not None:
            try:
                self._parser = touch_points.tool_parser_of(parser, self._tokenizer)
            except Exception as error:  # noqa: BLE001 - a user's parser may raise any exception
                logger.warning("continuum: tool parser %r is not used, the text is read instead: %s", parser, error)

    def __call__(self, request: Request) -> str | None:
        if self._tokenizer is None:
            return None
        try:
            text = self._tokenizer.decode(list(request.output_token_ids[-TAIL_TOKENS:]))
            return self._parsed(text) or tool_key(text, self._command_key)
        except Exception as error:  # noqa: BLE001 - an output must not end the engine
            logger.warning("continuum: an output could not be read for its tool: %s", error)
            return None

    def stop_string(self, request: Request) -> str | None:
        """Return the client's stop string that the output reached, or None.

        vLLM's front end detects stop strings and then aborts the request in the engine, as it does when a client
        disconnects. Only the output's text distinguishes the two cases.
        """
        sampling = touch_points.sampling(request)
        wanted: Any = sampling.stop
        output = request.output_token_ids[sampling.min_tokens :]  # before, vLLM ignores stop strings
        if not wanted or not output or self._tokenizer is None:
            return None
        try:
            text = self._text_after(request, list(output[-TAIL_TOKENS:]))
            return next((stop for stop in wanted if stop in text), None)
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("continuum: an output could not be read for its stop string: %s", error)
            return None

    def _text_after(self, request: Request, output: list[int]) -> str:
        """Return the output's text, decoded with the prompt's end, because some tokenizers drop a leading space."""
        special = touch_points.sampling(request).skip_special_tokens
        before = list(request.prompt_token_ids or ())[-CONTEXT_TOKENS:]
        prefix = self._tokenizer.decode(before, skip_special_tokens=special)
        text: str = self._tokenizer.decode(before + output, skip_special_tokens=special)
        return text.removeprefix(prefix)

    def _parsed(self, text: str) -> str | None:
        if self._parser is None:
            return None
        return openai_key(touch_points.parse_tool_calls(self._parser, text), self._command_key)
