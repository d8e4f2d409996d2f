#!/usr/bin/env bash
# usage: scripts/pytest_twice.sh PYTHON [pytest's arguments]
#
# Runs the tests; those that failed run once more, one after the other. Many tests wait for other
# processes, and a machine that stalls for seconds can fail one of them. Both runs are shown, and a
# test that fails twice fails. A test that passes the second time is a fault too, of the test: its
# name is printed, and added to the file that SECOND_RUNS names, if set.
set -euo pipefail
python=$1
shift
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
code=0
"$python" -m pytest -o cache_dir="$cache" "$@" || code=$?
[ "$code" = 1 ] || exit "$code" # 1: tests failed; anything else is no test's fault
failed=$("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
  "$cache/v/cache/lastfailed")
printf '\nWhat failed runs once more, alone.\n\n'
[[ " $* " != *" -n "* ]] || set -- "$@" -n 0
"$python" -m pytest -o cache_dir="$cache" "$@" --last-failed --last-failed-no-failures none
printf '\nThese needed a second run:\n%s\n' "$failed"
[ -z "${SECOND_RUNS:-}" ] || echo "$failed" >> "$SECOND_RUNS"
