"""An agent that knows nothing of Continuum. The server recognises each conversation by its prompts.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python untagged_agent.py
"""

import json
import urllib.request

from openai import OpenAI

client = OpenAI()
model = client.models.list().data[0].id

messages = [{"role": "user", "content": "You are a patient librarian. " * 40 + "Which book shall I read?"}]
for question in ("Why this one?", "And after that?", None):
    reply = client.chat.completions.create(model=model, messages=messages).choices[0].message
    messages.append({"role": "assistant", "content": reply.content})
    if question is not None:
        messages.append({"role": "user", "content": question})
print(len(messages), "messages")

with urllib.request.urlopen(f"{client.base_url}".removesuffix("v1/") + "continuum/state") as page:
    engine = json.load(page)["engines"][0]
for program in engine["program_list"]:
    if program["recognised_by"] == "prompt":
        print(f"{program['turns']} turns, recognised by their prompts; last hit {program['hit_share']:.0%}")
