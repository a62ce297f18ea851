"""An agent of Python's standard library. It knows OPENAI_BASE_URL and nothing of programs. Usage: agent.py MODEL TASK"""

import json
import os
import subprocess
import sys
import urllib.request

model, task = sys.argv[1:]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
messages = [{"role": "system", "content": "You work in a shell."}, {"role": "user", "content": task}]
while True:
    body = json.dumps({"model": model, "messages": messages, "tools": tools}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        message = json.load(answer)["choices"][0]["message"]
    messages.append({name: value for name, value in message.items() if value})
    if not message.get("tool_calls"):
        print(message["content"])
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
