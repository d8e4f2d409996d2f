codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
  --model "$OPENAI_MODEL" --config model_provider=turnwise --config "model_providers.turnwise={
    name='turnwise', base_url='$OPENAI_BASE_URL', env_key='OPENAI_API_KEY', wire_api='responses'
  }" "$1"
