mkdir "$HOME/.gemini"
echo '{"security": {"auth": {"selectedType": "gemini-api-key"}}}' > "$HOME/.gemini/settings.json"
gemini --skip-trust --yolo --prompt "$1"
