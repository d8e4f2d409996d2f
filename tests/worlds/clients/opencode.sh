export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_CONFIG_CONTENT='{
  "permission": "allow", "agent": {"title": {"disable": true}}, "provider": {"turnwise": {
    "npm": "@ai-sdk/openai-compatible", "models": {"'$OPENAI_MODEL'": {}},
    "options": {"baseURL": "'$OPENAI_BASE_URL'", "apiKey": "'$OPENAI_API_KEY'"}
}}}'
opencode run --model "turnwise/$OPENAI_MODEL" "$1"
