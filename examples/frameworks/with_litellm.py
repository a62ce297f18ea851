"""LiteLLM: a program around its calls (docs/client/frameworks.md)."""

import litellm

from continuum_client import OpenAI, extra_body, headers, instrument

agents = instrument(dialect="vllm")
there = {"api_base": "http://localhost:8000/v1", "api_key": "none", "messages": [{"role": "user", "content": "Hello"}]}
with agents.program("litellm-1"):
    litellm.completion(model="openai/my-model", **there)

# another provider
client = OpenAI(base_url="http://localhost:8000/v1", api_key="none", dialect="vllm")
with client.program("litellm-2"):
    litellm.completion(model="hosted_vllm/my-model", extra_headers=headers(), extra_body=extra_body(), **there)
