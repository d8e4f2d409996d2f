"""Trajectories and batches of them."""

import pytest

from turnwise import ConfigError, EpisodeStatus, RolloutData, Trajectory


def trajectory(**fields):
    return Trajectory(
        actions=["a", "b"], rewards=[1.0, 0.5], infos=[{}, {"success": True}], **fields
    )


def test_fields_are_read_by_attribute_and_by_item():
    t = trajectory()
    assert t["rewards"] is t.rewards
    assert t["total_reward"] == t.total_reward == 1.5
    assert t["num_turns"] == 2
    with pytest.raises(KeyError, match="rewards"):
        t["reward"]


def test_a_plain_mapping_becomes_a_trajectory():
    t = Trajectory.of({"rewards": [1.0], "actions": ["a"], "status": "done", "total_reward": 1.0})
    assert t.status is EpisodeStatus.DONE
    assert Trajectory.of(t) is t
    with pytest.raises(ConfigError, match="int"):
        Trajectory.of(3)


def test_statuses_fall_into_three_kinds():
    kinds = [(s.is_error, s.is_truncated) for s in EpisodeStatus]
    assert (True, True) not in kinds
    assert [s for s in EpisodeStatus if not s.is_error and not s.is_truncated] == [
        EpisodeStatus.DONE
    ]


def test_a_batch_is_a_sequence_with_figures():
    batch = RolloutData([trajectory(), trajectory(status=EpisodeStatus.TOOL_ERROR)])
    assert len(batch) == 2
    assert batch[0].success
    assert batch[1:][0].status.is_error
