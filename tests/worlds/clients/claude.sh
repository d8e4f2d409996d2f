export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 IS_SANDBOX=1
claude --print --dangerously-skip-permissions "$1"
