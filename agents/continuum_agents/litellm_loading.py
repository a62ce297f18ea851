"""Load the parts of LiteLLM that its first call loads, so that no program contains this time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import litellm

from continuum_client import OpenAI

_TOOL = {"type": "function", "function": {"name": "none", "parameters": {"type": "object", "properties": {}}}}


def warm_up() -> None:
    """Make a call that LiteLLM itself answers, and a call to a port on which no server listens."""
    litellm.suppress_debug_info = True
    with suppress(Exception):
        ask: Any = {"messages": [{"role": "user", "content": "."}], "tools": [_TOOL]}
        litellm.completion(model="openai/none", mock_response=".", **ask)
        client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0, implicit=False)
        litellm.completion(model="openai/none", client=client, **ask)  # fails: no server listens there
