"""Which tool a finished turn calls, read from its output tokens inside the engine core (SPEC 6).

One detokenisation and one parse per turn, of the last ``TAIL_TOKENS`` tokens: a tool call ends an output.
"""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.request import Request

from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.tool_keys import openai_key, tool_key

logger = logging.getLogger("continuum")

TAIL_TOKENS = 2048


class OutputTools:
    """Calls itself with a finished request; answers a tool key or None, and never raises.

    Args:
        vllm_config: for the tokenizer; without one nothing is read.
        parser: name of vLLM's tool-call parser, asked first; None: the text alone is read.
    """

    def __init__(self, vllm_config: Any, parser: str | None = None) -> None:
        self._tokenizer = touch_points.tokenizer_of(vllm_config)
        self._parser: Any = None
        if parser is not None and self._tokenizer is not None:
            try:
                self._parser = touch_points.tool_parser_of(parser, self._tokenizer)
            except Exception as error:  # noqa: BLE001 - a parser is any module's code; text is read instead
                logger.warning("continuum: tool parser %r is not used, the text is read instead: %s", parser, error)

    def __call__(self, request: Request) -> str | None:
        if self._tokenizer is None:
            return None
        try:
            text = self._tokenizer.decode(list(request.output_token_ids[-TAIL_TOKENS:]))
            return self._parsed(text) or tool_key(text)
        except Exception as error:  # noqa: BLE001 - reading a tool's name must never stop the engine
            logger.warning("continuum: an output could not be read for its tool: %s", error)
            return None

    def _parsed(self, text: str) -> str | None:
        return None if self._parser is None else openai_key(touch_points.parse_tool_calls(self._parser, text))
