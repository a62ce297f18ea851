"""Runs a LangGraph agent without Continuum's client on an emulated server, unchanged and under continuum-instrument.

    make frameworks; python benchmarks/instrumented_agent.py [--programs 20] [--turns 5] [--kv-blocks 6000]

Each arm has a server of its own with the policy ``working-set``. The programs start 0.4 s apart; each begins with a
prompt of 9,000 words and runs a tool of half a second between its turns. GPU time is modelled.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from continuum_server.launcher import Server
from continuum_server.server_command import model_name
from continuum_server.server_config import ServerConfig

REPO = Path(__file__).resolve().parents[1]
PYTHON = REPO / ".frameworks" / "langchain" / "bin" / "python"
INSTRUMENT = ["-m", "continuum_client.instrument_command", "--dialect", "vllm", str(PYTHON)]
AGENT = """
import random, sys, threading, time
from typing import Annotated, TypedDict
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

url, model, programs, turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
llm = ChatOpenAI(model=model, base_url=url, api_key="EMPTY", max_tokens=30, max_retries=0, timeout=300)

class State(TypedDict):
    messages: Annotated[list, add_messages]
    turn: int

def think(state):
    return {"messages": [llm.invoke(state["messages"])], "turn": state["turn"] + 1}

def act(state):
    time.sleep(0.5)
    return {"messages": [("user", f"result {state['turn']} " + "a.py b.py " * 150)]}

graph = StateGraph(State)
graph.add_node("think", think)
graph.add_node("act", act)
graph.add_edge(START, "think")
graph.add_conditional_edges("think", lambda state: "act" if state["turn"] < turns else END)
graph.add_edge("act", "think")
agent, times = graph.compile(), []

def run(number):
    chance, start = random.Random(number), time.monotonic()
    task = " ".join(chance.choice("alpha beta gamma delta list fix test".split()) for _ in range(9000))
    agent.invoke({"messages": [("user", f"{number} {task}")], "turn": 0}, {"recursion_limit": 100})
    times.append(time.monotonic() - start)

threads = [threading.Thread(target=run, args=(number,)) for number in range(programs)]
for thread in threads:
    thread.start()
    time.sleep(0.4)
for thread in threads:
    thread.join()
print(f"{len(times)} | {sum(times) / len(times):.1f} | {max(times):.1f}")
"""


def counted(metrics: str, name: str) -> float:
    found = re.search(rf"^vllm:{name}_total{{.*}} (\S+)$", metrics, flags=re.M)
    return float(found[1]) if found else 0.0


def play(arm: str, config: ServerConfig, programs: int, turns: int) -> str:
    """Play one arm, and return its row of the table."""
    variables = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'traces'}"}
    with tempfile.TemporaryDirectory() as folder, Server(config, Path(folder) / "log") as server:
        (Path(folder) / "agent.py").write_text(AGENT)
        agent = [f"{folder}/agent.py", f"{server.url}/v1", model_name(config), str(programs), str(turns)]
        command = [str(PYTHON), *(INSTRUMENT if arm == "continuum-instrument" else []), *agent]
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
    hit = counted(metrics, "prefix_cache_hits") / counted(metrics, "prefix_cache_queries")
    return f"| {arm} | {done.stdout.strip()} | {hit:.0%} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kv-blocks", type=int, default=6000)
    arguments = parser.parse_args()
    config = ServerConfig(engine="emulated", port=0, kv_blocks=arguments.kv_blocks)
    sys.stdout.write("| the agent | programs | mean JCT, s | longest JCT, s | prefix hits |\n|---|---|---|---|---|\n")
    for arm in ("as it is", "continuum-instrument"):
        sys.stdout.write(play(arm, config, arguments.programs, arguments.turns))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
