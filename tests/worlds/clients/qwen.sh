mkdir "$HOME/.qwen"
echo '{"memory": {"enableManagedAutoMemory": false}, "telemetry": {"enabled": false}}' \
  > "$HOME/.qwen/settings.json"
qwen --auth-type openai --yolo --prompt "$1"
