#!/usr/bin/env bash
# Lints and formats the viewer's page with the version of biome that package.json names:
#     scripts/javascript/biome.sh ci          report what is wrong
#     scripts/javascript/biome.sh check --write    fix it
# Where there is no npm, that is reported and nothing is checked.
set -euo pipefail
here=$(dirname "$0")
if ! command -v npm > /dev/null; then
  echo "The viewer's JavaScript was not checked: install node and npm (Debian: apt-get install npm)."
  exit 0
fi
wanted=$(sed -nE 's/.*"@biomejs\/biome": "([^"]+)".*/\1/p' "$here/package.json")
grep -qs "\"version\": \"$wanted\"" "$here/node_modules/@biomejs/biome/package.json" ||
  npm install --prefix "$here" --silent
exec "$here/node_modules/.bin/biome" "$@"
