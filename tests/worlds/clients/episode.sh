set -eu
episode=$(dirname "$TURNWISE_TASK_FILE")    # a folder of this episode, deleted at its end
cp -r "$WORK" "$episode/work"
mkdir "$episode/home"
export HOME=$episode/home
cd "$episode/work"
. "$CLIENT" "$1"                            # one of the files below
python3 -c 'from sums import add; assert add(20, 22) == 42' && reward=1.0 || reward=0.0
echo $reward > "$TURNWISE_REWARD_FILE"
