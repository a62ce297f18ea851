// An agent for Node 18 or later, without packages. It knows OPENAI_BASE_URL and nothing of programs. It streams.
// Usage: node agent.mjs MODEL TASK
import { spawnSync } from "node:child_process";

const [model, task] = process.argv.slice(2);
const bash = { name: "bash", parameters: { type: "object", properties: { command: { type: "string" } } } };
const messages = [{ role: "system", content: "You work in a shell." }, { role: "user", content: task }];

async function* events(body) {
  let rest = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}

async function ask() {
  const answer = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY}` },
    body: JSON.stringify({ model, messages, tools: [{ type: "function", function: bash }], stream: true }),
  });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  const message = { role: "assistant", content: "", tool_calls: [] };
  for await (const { choices } of events(answer.body)) {
    const delta = choices[0].delta;
    message.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (message.tool_calls[part.index] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
      call.function.name += part.function.name ?? "";
      call.function.arguments += part.function.arguments ?? "";
    }
  }
  if (message.tool_calls.length === 0) delete message.tool_calls;
  return message;
}

while (true) {
  const message = await ask();
  messages.push(message);
  if (!message.tool_calls) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls) {
    const ran = spawnSync("bash", ["-c", JSON.parse(call.function.arguments).command], { encoding: "utf8" });
    messages.push({ role: "tool", tool_call_id: call.id, content: ran.stdout + ran.stderr });
  }
}
