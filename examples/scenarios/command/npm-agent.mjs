// An agent that uses npm's `openai` package. It reads OPENAI_BASE_URL and knows nothing of programs.
// Usage: NPM_FOLDER=FOLDER node npm-agent.mjs MODEL TASK, where `npm install openai` was run in FOLDER
import { createRequire } from "node:module";
import { spawnSync } from "node:child_process";

const OpenAI = createRequire(`${process.env.NPM_FOLDER}/`)("openai").default;
const client = new OpenAI({ maxRetries: 0 });
const [model, task] = process.argv.slice(2);
const bash = { name: "bash", parameters: { type: "object", properties: { command: { type: "string" } } } };
const messages = [{ role: "system", content: "You work in a shell." }, { role: "user", content: task }];
while (true) {
  const tools = [{ type: "function", function: bash }];
  const { message } = (await client.chat.completions.create({ model, messages, tools })).choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls) {
    const ran = spawnSync("bash", ["-c", JSON.parse(call.function.arguments).command], { encoding: "utf8" });
    messages.push({ role: "tool", tool_call_id: call.id, content: ran.stdout + ran.stderr });
  }
}
