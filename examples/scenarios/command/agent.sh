#!/usr/bin/env bash
# An agent of curl and jq. It knows OPENAI_BASE_URL and nothing of programs. Usage: agent.sh MODEL TASK
set -euo pipefail
tools='[{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]'
messages=$(jq -n --arg task "$2" '[{role: "system", content: "You work in a shell."}, {role: "user", content: $task}]')
while true; do
  request=$(jq -n --arg model "$1" --argjson messages "$messages" --argjson tools "$tools" '$ARGS.named')
  message=$(curl -sS --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H 'Content-Type: application/json' --data-binary @- <<<"$request" | jq -c '.choices[0].message')
  messages=$(jq -c --argjson message "$message" '. + [$message]' <<<"$messages")
  calls=$(jq -c '.tool_calls // [] | .[]' <<<"$message")
  if [ -z "$calls" ]; then
    jq -r '.content' <<<"$message"
    exit 0
  fi
  while read -r call; do
    output=$(bash -c "$(jq -r '.function.arguments | fromjson | .command' <<<"$call")" 2>&1 </dev/null || true)
    messages=$(jq -c --arg id "$(jq -r '.id' <<<"$call")" --arg output "$output" \
      '. + [{role: "tool", tool_call_id: $id, content: $output}]' <<<"$messages")
  done <<<"$calls"
done
