"""Agents that edit their history: every sampled token is trained on once, where it was sampled."""

import dataclasses
import itertools
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings, strategies as st

from chat.families import FAMILIES, make_format
from turnwise.chat import ConversationTree
from turnwise.errors import ConfigError
from turnwise.learner import PPOBatch

WORDS = st.text("abcdehlo <>|[]{}/\n,.05é☃", max_size=12)
ACTIONS = st.sampled_from(
    ["append", "append", "edit", "edit answer", "drop", "compact", "fork", "retry", "parallel"]
)


def ask(tree, messages):
    prompt = tree.match(messages)
    prompt.encode(tree.writer)
    return prompt


@dataclass
class Harness:
    """An agent that changes its messages at random, and the record of what the engine was given."""

    chat: object
    tree: ConversationTree
    messages: list = field(default_factory=list)
    given: dict = field(default_factory=dict)
    numbers: object = field(default_factory=itertools.count)

    def ask(self, messages):
        return ask(self.tree, messages)

    def answer(self, prompt, text):
        ids = [
            i
            for letter in text
            for i in self.chat.tokenizer.encode(letter, add_special_tokens=False)
        ]
        ids = ids or [self.chat.tokenizer.encode("a", add_special_tokens=False)[-1]]
        log_probs = [-float(next(self.numbers)) for _ in ids]
        reply = {"role": "assistant", "content": self.chat.decode(ids)}
        turn = self.tree.add(prompt, ids, log_probs, reply)
        self.given[turn] = (list(prompt.ids), ids, log_probs)
        return reply

    def act(self, action, text, where):
        place = where % max(1, len(self.messages))
        if action == "edit" and self.messages:
            self.messages[place] = {**self.messages[place], "content": text}
        elif action == "edit answer":
            own = [i for i, m in enumerate(self.messages) if m["role"] == "assistant"]
            for i in own[:1]:
                self.messages[i] = {"role": "assistant", "content": text}
        elif action == "drop" and len(self.messages) > 2:
            start = 2 * (place // 2)
            del self.messages[start : start + 2]
        elif action == "compact" and len(self.messages) > 2:
            del self.messages[:-2]
        elif action == "fork" and self.messages:
            del self.messages[2 * (place // 2) :]
        if action != "retry" or not self.messages:
            self.messages.append({"role": "user", "content": text})
        else:
            del self.messages[-1]  # the answer: the same question once more
        if action != "parallel":
            self.messages.append(self.answer(self.ask(self.messages), text[::-1]))
            return
        questions = [[*self.messages[:-1], {"role": "user", "content": text + x}] for x in "xyy"]
        prompts = [self.ask(messages) for messages in questions]
        order = [(1, 0, 2), (2, 1, 0), (0, 1, 2)][where % 3]
        replies = {i: self.answer(prompts[i], text[: i + 1]) for i in order}
        self.messages = [*questions[where % 3], replies[where % 3]]


def check(harness):
    stream, turns = harness.tree.stream(), harness.tree.in_order()
    assert len(stream.turns) == len(turns) == len(harness.given)
    for turn, (start, end) in zip(turns, stream.turns, strict=True):
        prompt, ids, log_probs = harness.given[turn]
        context = [i for a, b in stream.context(start) for i in stream.ids[a:b]]
        assert context == prompt, "the context is not what the engine was given"
        assert list(stream.ids[start:end]) == ids
        assert list(stream.log_probs[start:end]) == log_probs
    assert sum(stream.mask) == sum(len(ids) for _, ids, _ in harness.given.values())


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=15)
@given(actions=st.lists(st.tuples(ACTIONS, WORDS, st.integers(0, 7)), min_size=1, max_size=7))
def test_every_sampled_token_stands_once_in_the_context_it_was_sampled_in(name, actions):
    chat = make_format(name)
    harness = Harness(chat, ConversationTree(chat))
    for action, text, where in actions:
        try:
            harness.act(action, text, where)
        except ConfigError:  # this template does not take these roles in this order
            break
    check(harness)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_harness_that_only_appends_has_the_stream_of_an_episode(name):
    chat = make_format(name)
    harness = Harness(chat, ConversationTree(chat))
    for text in ("hello", "bed, 5", "ace"):
        harness.act("append", text, 0)
    from turnwise.chat import Conversation

    conversation = Conversation(chat, harness.messages[:1])
    for number, turn in enumerate(harness.tree.in_order()):
        conversation.answer(turn.ids, turn.log_probs)
        if number < 2:
            conversation.add(harness.messages[2 * number + 2 : 2 * number + 3])
    stream = harness.tree.stream()
    assert stream.branches == []
    assert vars(stream) == vars(conversation.stream)
    ours, expected = (PPOBatch.from_streams([s]) for s in (stream, conversation.stream))
    for kept in dataclasses.fields(PPOBatch):
        one, other = getattr(ours, kept.name), getattr(expected, kept.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_retry_shares_its_whole_context():
    chat = make_format("chatml")
    harness = Harness(chat, ConversationTree(chat))
    prompts = [harness.ask([{"role": "user", "content": "hello"}]) for _ in range(2)]
    assert prompts[0].key != prompts[1].key
    for prompt, text in zip(prompts, ("a", "b"), strict=True):
        harness.answer(prompt, text)
    stream = harness.tree.stream()
    assert len(stream) == len(prompts[0].ids) + 2
    assert stream.branches == [(len(prompts[0].ids) + 1, len(prompts[0].ids))]


def test_thoughts_that_the_agent_drops_begin_a_branch_unless_they_are_kept():
    chat = make_format("chatml")
    for thoughts, num_branches in (("as_sent", 1), ("keep", 0)):
        tree = ConversationTree(chat, thoughts)
        question = {"role": "user", "content": "hello"}
        prompt = ask(tree, [question])
        reply = {"role": "assistant", "content": "bed", "reasoning_content": "ace"}
        tree.add(prompt, [5, 6], [-1.0, -2.0], reply)
        sent = {"role": "assistant", "content": " bed\n"}
        prompt = ask(tree, [question, sent, question])
        tree.add(prompt, [7], [-3.0], {"role": "assistant", "content": "b"})
        assert len(tree.stream().branches) == num_branches


def test_tool_calls_match_by_value_and_equal_ones_by_their_ids():
    tree = ConversationTree(make_format("hermes"))
    question = {"role": "user", "content": "hello"}

    def reply(call_id, arguments):
        function = {"name": "f", "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    prompts = [ask(tree, [question]) for _ in range(2)]
    turns = [
        tree.add(prompt, [5 + i], [-1.0], reply(f"call{i}", '{"b": 2, "a": 1}'))
        for i, prompt in enumerate(prompts)
    ]
    for i, turn in enumerate(turns):
        sent = {**reply(f"call{i}", '{"a":1,"b":2}'), "content": ""}
        result = {"role": "tool", "content": "5", "tool_call_id": f"call{i}"}
        assert ask(tree, [question, sent, result]).parent is turn
    other = reply("call0", '{"a":1,"b":3}')
    assert ask(tree, [question, other, question]).parent is None
