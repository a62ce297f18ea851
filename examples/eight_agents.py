"""Eight agents whose prompts grow, on a server whose memory holds three of them. Run it on two servers:

continuum-bench serve --gpu a100 --kv-blocks 4000 --log held.log &
python eight_agents.py http://127.0.0.1:8000/v1
continuum-bench serve --gpu a100 --kv-blocks 4000 --policy stock --port 8001 --log stock.log &
python eight_agents.py http://127.0.0.1:8001/v1
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from continuum_client import OpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
TURNS, TOOL_S = 6, 1.0
OUTPUT = "a line that the tool printed\n" * 500  # about 4,000 tokens

client = OpenAI(base_url=BASE_URL, api_key="none", dialect="vllm", max_retries=20)  # waits for a server that starts
model = client.models.list().data[0].id


def agent(name: str) -> tuple[int, int]:
    """Play one agent. Return the number of its prompts' tokens, and how many of them were in the server's cache."""
    asked = cached = 0
    messages: list[Any] = [{"role": "user", "content": f"You are {name}. Mend the test."}]
    with client.program(name) as program:
        for turn in range(TURNS):
            answer = client.chat.completions.create(model=model, messages=messages, max_tokens=100)
            usage = answer.usage
            asked += usage.prompt_tokens if usage else 0
            cached += (usage.prompt_tokens_details.cached_tokens or 0) if usage and usage.prompt_tokens_details else 0
            with program.tool("pytest"):
                time.sleep(TOOL_S)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content or "-"})
            messages.append({"role": "user", "content": f"Run {turn} of {name}:\n{OUTPUT}"})
    return asked, cached


def main() -> None:
    began_s = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        asked, cached = map(sum, zip(*pool.map(agent, [f"agent-{number}" for number in range(8)]), strict=True))
    took_s = time.perf_counter() - began_s
    print(f"eight agents: {took_s:.0f} s; {cached / asked:.0%} of their prompts' tokens were in the cache")


if __name__ == "__main__":
    main()
