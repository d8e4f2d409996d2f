"""Agents' episodes: functions and commands, their rewards, and what they do wrong."""

import json
import sys
import time
import urllib.error
import urllib.request

import pytest

from agents.serving import QUESTION, TOOL, policy
from chat.families import make_format
from turnwise import ConfigError
from turnwise.agents.episode import AgentEpisodes
from turnwise.deadlines import run_sync
from turnwise.episode import EpisodeCollector, EpisodeLimits
from turnwise.episode.types import EpisodeTask
from turnwise.inference.scripted import ScriptedEngine
from turnwise.types import EpisodeStatus


def call(llm, messages, **more):
    """One request, as an agent without any SDK makes it."""
    body = {"model": llm.model, "messages": messages, "tools": [TOOL], **more}
    request = urllib.request.Request(
        f"{llm.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {llm.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def play(agent, num_groups=1, group_size=1, **options):
    chat = make_format("hermes")
    engine = ScriptedEngine(chat.tokenizer, policy)
    source = AgentEpisodes(agent)
    options = {"chat_format": chat, "parser": "hermes", "num_retries": 0, **options}
    try:
        collector = EpisodeCollector(engine, source, **options)
        return collector.collect_sync(num_groups, group_size)
    finally:
        source.close()


def looks_up(task, llm):
    messages = list(QUESTION)
    for _ in range(3):
        message = call(llm, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return float("42" in message["content"])
        call_id = message["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "result 42"})
    return 0.0


def test_a_plain_function_and_its_reward():
    results = play(looks_up, 3, 2)
    assert [result.status for result in results] == [EpisodeStatus.DONE] * 6
    for result in results:
        assert result.reward.total == 1.0
        assert [turn.tokens for turn in result.turns] == list(result.stream.turns)
        assert result.turns[0].calls[0].arguments == {"key": "x"}
        assert result.turns[0].observation == "result 42" == result.turns[1].state
        assert result.trajectory.result == 1.0


def test_an_async_agent_that_blocks_its_loop_still_gets_its_replies():
    async def agent(task, llm):
        return looks_up(task, llm)

    assert [result.reward.total for result in play(agent, 2)] == [1.0, 1.0]


def test_rewards_are_numbers_parts_or_what_a_reward_function_says():
    (result,) = play(lambda task, llm: {"right": 1.0, "short": 0.5})
    assert result.reward.parts == {"right": 1.0, "short": 0.5}
    (result,) = play(lambda task, llm: "a text", reward_fn=lambda t: float(len(t.result)))
    assert result.reward.total == 6.0
    for returned, problem in (
        ("a text", "the agent returned 'a text', which is no reward: returned str, expected"),
        (None, "the agent left no reward, expected a number or a dict of numbers"),
        (float("nan"), "the agent returned nan, which is no reward"),
        ([1.0, 2.0], "got 2 rewards for an episode of 0 turns"),
    ):
        (result,) = play(lambda task, llm, returned=returned: returned)
        assert result.status is EpisodeStatus.REWARD_ERROR
        assert result.reward is None
        assert problem in result.error
        assert "pass reward_fn" in result.error


def test_agents_that_raise_hang_or_run_out_of_turns():
    def raises(task, llm):
        call(llm, QUESTION)
        raise ValueError("no idea")

    (result,) = play(raises)
    assert result.status is EpisodeStatus.AGENT_ERROR
    assert result.error == "ValueError: no idea"
    assert "raises" in result.traceback
    assert result.num_turns == 1, "what was sampled is kept"

    def hangs(task, llm):
        time.sleep(60)

    limits = EpisodeLimits(max_seconds=0.3)
    for result in play(hangs, 3, limits=limits):  # one message: these are failures of one kind
        assert result.status is EpisodeStatus.AGENT_ERROR
        said = "the agent took longer than 0.3 s. Make it faster, or raise limits.max_seconds."
        assert result.error == said
    (result,) = play(hangs, limits=limits, reward_fn=lambda trajectory: 0.25)
    assert result.status is EpisodeStatus.TRUNCATED_BY_TIME
    assert result.reward.total == 0.25

    def greedy(task, llm):
        for number in range(9):
            try:
                call(llm, QUESTION)
            except urllib.error.HTTPError as error:
                return error.code + number / 10
        return 0.0

    (result,) = play(greedy, limits=EpisodeLimits(max_turns=3))
    assert result.status is EpisodeStatus.TRUNCATED_BY_TURNS
    assert (result.num_turns, result.reward.total) == (3, 429.3)


def test_a_command_reads_the_usual_variables_and_writes_its_reward(tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, os, sys, urllib.request\n"
        "body = {'model': os.environ['OPENAI_MODEL'], 'messages': "
        "[{'role': 'user', 'content': sys.argv[1]}]}\n"
        "request = urllib.request.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', "
        "json.dumps(body).encode(), "
        "{'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']})\n"
        "message = json.load(urllib.request.urlopen(request))['choices'][0]['message']\n"
        "print(message['content'])\n"
        "json.dump({'found': 1.5}, open(os.environ['TURNWISE_REWARD_FILE'], 'w'))\n"
        "sys.exit(3)\n"
    )
    command = f"{sys.executable} {script} 'the result {{task}}'"
    chat = make_format("hermes")
    engine = ScriptedEngine(chat.tokenizer, policy)
    source = AgentEpisodes(command)
    try:
        collector = EpisodeCollector(engine, source, chat_format=chat)
        tasks = [EpisodeTask(seed=1, task={"prompt": "42; rm 'x'"})]
        (result,) = run_sync(collector.play(tasks))
    finally:
        source.close()
    assert result.trajectory.result.exit_code == 3
    assert result.trajectory.result.output == "It is 42.\n"
    assert result.reward.parts == {"found": 1.5}
    assert result.messages[0]["content"] == "the result 42; rm 'x'"


def test_nothing_that_is_no_agent_is_taken():
    for wrong in (3, "", None):
        with pytest.raises(ConfigError, match="expected"):
            AgentEpisodes(wrong)
    for function in (lambda task: 1.0, lambda: 1.0, lambda task, llm, more: 1.0):
        with pytest.raises(ConfigError, match=r"\(task, llm\)"):
            AgentEpisodes(function)


def test_commands_that_cannot_start_or_leave_no_reward():
    (result,) = play("no-such-command-anywhere {task}")
    assert result.status is EpisodeStatus.AGENT_ERROR
    assert "'no-such-command-anywhere' could not be started: No such file" in result.error
    (result,) = play(f"{sys.executable} -c 'import sys; sys.exit(\"no model\")'")
    assert result.status is EpisodeStatus.REWARD_ERROR
    assert "ended with exit code 1" in result.error
    assert "$TURNWISE_REWARD_FILE" in result.error
    assert result.error.endswith("and wrote: no model")


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (b"good", "wrote 'good' into $TURNWISE_REWARD_FILE, expected a number"),
        (b"", "wrote '' into $TURNWISE_REWARD_FILE"),
        (b"\xff\xfe", "wrote '\ufffd\ufffd' into $TURNWISE_REWARD_FILE"),
        (b"[1]", "the agent returned [1], which is no reward"),
        (b'"a"', "the agent returned 'a', which is no reward"),
    ],
)
def test_a_reward_file_without_a_reward(tmp_path, written, problem):
    (tmp_path / "reward").write_bytes(written)
    (result,) = play(f'sh -c "cp {tmp_path}/reward $TURNWISE_REWARD_FILE"')
    assert result.status.is_error
    assert problem in result.error
