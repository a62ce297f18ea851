"""A LangGraph agent. It reads OPENAI_BASE_URL and knows nothing of programs. Usage: graph.py MODEL TASK"""

import subprocess
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def bash(command: str) -> str:
    """Run a command in the shell."""
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    return ran.stdout + ran.stderr


model, task = sys.argv[1:]
agent = create_react_agent(ChatOpenAI(model=model, max_retries=0), [bash], prompt="You work in a shell.")
done = agent.invoke({"messages": [("user", task)]}, config={"recursion_limit": 100})
print(done["messages"][-1].content)
