"""Batches: from recorded streams, from plain dicts, and what is refused."""

import math

import pytest
import torch

from turnwise import ConfigError
from turnwise.chat import TokenStream
from turnwise.learner import PPOBatch, on_last_token


def stream(*parts):
    made = TokenStream()
    for part in parts:
        if isinstance(part, tuple):
            made.add_turn(list(part), [-0.1 * token for token in part])
        else:
            made.add_context(part)
    return made


def test_streams_become_rows_token_for_token():
    batch = PPOBatch.from_streams([stream([5, 6], (7, 8), [9], (1,)), stream([5], (2,))])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 1], [5, 2, 0, 0, 0, 0]]
    assert batch.response_mask.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.attention_mask.int().tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0]]
    expected = torch.tensor([[0, 0, -0.7, -0.8, 0, -0.1], [0, -0.2, 0, 0, 0, 0]])
    torch.testing.assert_close(batch.sampler_log_probs, expected)
    assert not any(math.isnan(x) for x in batch.sampler_log_probs.flatten().tolist())


def test_narrow_tensors_belong_to_the_last_columns():
    batch = PPOBatch.from_mapping(
        {
            "input_ids": [[1, 2, 3, 4]],
            "attention_mask": [[1.0, 1.0, 1.0, 1.0]],
            "responses": [[3, 4]],
            "response_mask": [[1, 1]],
            "old_log_probs": [[-0.5, -0.6]],
            "rewards": torch.tensor([2.0]),
            "something_else": "is not looked at",
        }
    )
    assert batch.response_mask.int().tolist() == [[0, 0, 1, 1]]
    torch.testing.assert_close(batch.old_log_probs, torch.tensor([[0, 0, -0.5, -0.6]]))
    assert batch.rewards.tolist() == [[0, 0, 0, 2.0]]


def test_episode_scores_go_on_the_last_policy_token():
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]]).bool()
    scores = on_last_token(torch.tensor([1.0, 2.0, 3.0]), mask)
    assert scores.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 3]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"input_ids": [[1, 2]]}, "needs input_ids and response_mask"),
        (
            {"input_ids": [[1, 2]], "response_mask": [[0, 1]], "values": [[1.0], [2.0]]},
            "values got shape",
        ),
        (
            {"input_ids": [[1, 2]], "response_mask": [[0, 1]], "attention_mask": [[1, 0]]},
            "padding cannot be trained on",
        ),
        ({"input_ids": [[1, 2]], "response_mask": [[1]], "responses": [[9]]}, "not the responses"),
    ],
)
def test_what_does_not_fit_is_named(data, words):
    with pytest.raises(ConfigError, match=words):
        PPOBatch.from_mapping(data)
