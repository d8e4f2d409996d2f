#!/usr/bin/env bash
# Lints and formats the viewer's page with the version of biome that package.json names:
#     scripts/javascript/biome.sh ci          report what is wrong
#     scripts/javascript/biome.sh check --write    fix it
# Where there is no npm, or no network at the first run, that is reported and nothing is checked.
set -euo pipefail
here=$(dirname "$0")
if ! command -v npm > /dev/null; then
  echo "The viewer's JavaScript was not checked: install node and npm (Debian: apt-get install npm)."
  exit 0
fi
wanted=$(sed -nE 's/.*"@biomejs\/biome": "([^"]+)".*/\1/p' "$here/package.json")
if ! grep -qs "\"version\": \"$wanted\"" "$here/node_modules/@biomejs/biome/package.json" &&
  ! timeout 180 npm install --prefix "$here" --silent; then
  echo "The viewer's JavaScript was not checked: npm could not install biome $wanted."
  exit 0
fi
exec "$here/node_modules/.bin/biome" "$@"
