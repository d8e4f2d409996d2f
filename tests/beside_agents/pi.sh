#!/usr/bin/env bash
# A command-line coding agent as an agent command: it does the task in an empty folder, and the
# reward is 1 if it has written the number into the file.
#     pi.sh TASK    with $PI, the program; the rest comes from turnwise
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/settings" "$folder/work"
export PI_CODING_AGENT_DIR=$folder/settings PI_OFFLINE=1
cat > "$folder/settings/models.json" << END
{"providers": {"turnwise": {
  "baseUrl": "$OPENAI_BASE_URL", "api": "openai-completions", "apiKey": "OPENAI_API_KEY",
  "models": [{"id": "$OPENAI_MODEL", "contextWindow": 100000, "maxTokens": 1000}]
}}}
END
cd "$folder/work"
"$PI" --provider turnwise --model "$OPENAI_MODEL" --no-session --print "$1"
[ "$(cat answer.txt)" = 42 ] && echo 1.0 > "$TURNWISE_REWARD_FILE"
