#!/usr/bin/env bash
# Do the tutorial as somebody new would: a fresh clone, a fresh environment, every command of the
# page in its order. Fails at the first thing that does not work. Prints how long each section took,
# and the time from `git clone` to a rising reward.
#
#   tests/newcomer.sh [FOLDER]     works in FOLDER, which must not exist yet, and leaves it there;
#                                  without one, in a temporary folder that is removed
set -euo pipefail

checkout=$(cd "$(dirname "$0")/.." && pwd)
tutorial=("$(command -v python3)" "$checkout/tests/docs/tutorial.py")
if [ $# -gt 0 ]; then
  mkdir "$1"
  place=$(cd "$1" && pwd)
  keep=yes
else
  place=$(mktemp -d)
  keep=
fi
watcher=
finish() {
  status=$?
  [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
  [ -n "$keep" ] || rm -rf "$place"
  [ $status -eq 0 ] || echo "newcomer: FAILED, status $status" >&2
}
trap finish EXIT

# Nothing of this machine's checkout or environments; of its caches only pip's, which holds packages.
unset PYTHONPATH VIRTUAL_ENV
export PIP_CACHE_DIR=${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}
export XDG_CACHE_HOME=$place/cache
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=2

"${tutorial[@]}" script "$checkout/docs/tutorial.md" "$place/stages" > "$place/tutorial.sh"
mkdir "$place/work"
cd "$place/work"
started=$(date +%s.%N)
git clone --quiet "$checkout" turnwise
"${tutorial[@]}" watch "$place/work" "$started" > "$place/risen" &
watcher=$!
bash -euo pipefail "$place/tutorial.sh" < /dev/null

. "$place/work/.venv/bin/activate"
"${tutorial[@]}" check "$place/work/my_env"
printf '\nEach section:\n%s\n' "$(cat "$place/stages")"
[ -s "$place/risen" ] || { echo "newcomer: no reward has risen" >&2; exit 1; }
printf 'From git clone to a rising reward: %.0f s (the bar is 300 s, on 2 idle cores).\n' \
  "$(cat "$place/risen")"
