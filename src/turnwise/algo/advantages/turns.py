"""Advantages per turn: an action is all that the agent says in one turn, not one token.

All three estimators give every token of a turn the same advantage. `turn_ids` [B, T] is the turn of
each policy token, from 0; without it each contiguous run of policy tokens is a turn, which is what
chat templates produce.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from turnwise.algo.advantages.gae import compute_gae_advantage_return
from turnwise.algo.groups import GroupIndex, Groups
from turnwise.algo.masked import as_mask, discounted_suffix_sum, keep, masked_whiten
from turnwise.errors import ConfigError


@dataclass(frozen=True)
class Turns:
    """The turns of a batch: [B, K], where K is the most turns of any episode."""

    ids: torch.Tensor
    """[B, T], the turn of each policy token; 0 on masked tokens."""
    mask: torch.Tensor
    """[B, T] bool, the policy's tokens."""
    exists: torch.Tensor
    """[B, K] bool, whether the episode has that turn; its turns come first, without gaps."""
    numbers: torch.Tensor
    """[B, K], each turn's own number, which is larger where turns before it had no tokens."""
    dtype: torch.dtype
    """Of what `on_tokens` returns."""

    @classmethod
    def from_batch(
        cls, rewards: torch.Tensor, response_mask: torch.Tensor, turn_ids: torch.Tensor | None
    ) -> Self:
        mask = as_mask(response_mask)
        if turn_ids is None:
            starts = mask.clone()
            starts[:, 1:] &= ~mask[:, :-1]
            turn_ids = starts.cumsum(1) - 1
        ids = torch.where(mask, turn_ids.long(), 0)
        width = int(ids.max()) + 1 if ids.numel() else 1
        counts = torch.zeros(len(mask), width, dtype=torch.long, device=mask.device)
        present = counts.scatter_add_(1, ids, mask.long()) > 0
        ids = torch.where(mask, (present.cumsum(1) - 1).gather(1, ids), 0)
        # Sorting what is absent to the end keeps the order of the rest.
        numbers = torch.argsort(~present, dim=1, stable=True)
        exists = present.gather(1, numbers)
        # At least one column, so that a batch without any turn has something to look up.
        num_turns = max(1, int(exists.sum(1).max())) if len(exists) else 1
        dtype = torch.promote_types(rewards.dtype, torch.float32)
        return cls(ids, mask, exists[:, :num_turns], numbers[:, :num_turns], dtype)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Total of each turn: [B, T] -> [B, K], in float64: turns are few."""
        x = keep(x.double(), self.mask)
        return x.new_zeros(self.exists.shape).scatter_add_(1, self.ids, x)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        """x at the first token of each turn: [B, T] -> [B, K], in float64."""
        length = self.ids.shape[1]
        position = torch.arange(length, device=x.device).expand_as(self.ids)
        position = torch.where(self.mask, position, length)
        first = torch.full_like(self.exists, length, dtype=torch.long)
        first.scatter_reduce_(1, self.ids, position, "amin")
        # Behind the last column there is one more, for turns that do not exist.
        padded = torch.nn.functional.pad(x.double(), (0, 1))
        return keep(padded.gather(1, first), self.exists)

    def on_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Each turn's number on each of its tokens: [B, K] -> [B, T]."""
        return keep(x.to(self.dtype).gather(1, self.ids), self.mask)


@torch.no_grad()
def compute_turn_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    turn_ids: torch.Tensor | None = None,
    bootstrap_values: torch.Tensor | None = None,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE in which one turn is one step (https://arxiv.org/abs/1506.02438 on the turn's MDP).

        δ_k = r_k + γ V_(k+1) − V_k        A_k = Σ_j (γλ)^j δ_(k+j)        R_k = A_k + V_k

    r_k is the reward of turn k, V_k the critic's value at its first token, before the agent has
    said anything. γ and λ count turns, so a long turn discounts no more than a short one.

    Args and Returns: as `compute_gae_advantage_return`.
    """
    turns = Turns.from_batch(token_level_rewards, response_mask, turn_ids)
    advantages, returns = compute_gae_advantage_return(
        turns.sum(token_level_rewards),
        turns.first(values),
        turns.exists,
        gamma,
        lam,
        bootstrap_values=bootstrap_values,
        whiten=False,
    )
    on_tokens = turns.on_tokens(advantages)
    returns = turns.on_tokens(returns)
    if whiten:
        on_tokens = masked_whiten(on_tokens, turns.mask, minuends=returns)
    return on_tokens, returns


@torch.no_grad()
def compute_turn_grpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    gamma: float = 1.0,
    *,
    turn_ids: torch.Tensor | None = None,
    norm_by_std: bool = False,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn-level credit within a group, without the bias of normalising per turn index.

    With G_ik = Σ_j γ^j r_i(k+j) the reward-to-go of turn k, and K_j the last turn of episode j:

        A_ik = G_ik − mean_(j ≠ i) G_j,min(k, K_j)

    The obvious form, (r_ik − mean_i r_ik) per turn index k summed over the later turns, subtracts
    one mean for each turn that follows. How many these are depends on the action (to stop or to
    continue), so it is no baseline: where all episodes earn the same in the end it still
    pushes towards more, or fewer, turns. Here an action's baseline comes from the other episodes
    alone, so its expected push is zero: an episode that ended before k stands there at its last
    turn. If only last turns pay, this is RLOO.

    An episode alone in its group has advantage 0.

    Args:
        gamma: Discount per turn.
        norm_by_std: Divide by the group's standard deviation of G_i0; one number a group.
    """
    turns = Turns.from_batch(token_level_rewards, response_mask, turn_ids)
    to_go = discounted_suffix_sum(turns.sum(token_level_rewards), turns.exists, gamma)
    groups = Groups.from_index(index, to_go, token_level_rewards.dtype)
    last = (turns.exists.sum(1) - 1).clamp(min=0)
    turn = torch.arange(turns.exists.shape[1], device=to_go.device)
    standing = to_go.gather(1, torch.minimum(turn, last[:, None]))
    others = (groups.sizes - 1).clamp(min=1)[:, None]
    baseline = (groups.sum(standing) - standing) / others
    relative = groups.without_rounding(standing - baseline, standing)
    advantages = torch.where(groups.is_alone[:, None], 0.0, relative)
    if norm_by_std:
        advantages /= groups.std(standing[:, 0])[:, None] + epsilon
    return turns.on_tokens(advantages), turns.on_tokens(to_go)


@torch.no_grad()
def compute_gigpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    anchor_states: Sequence[Sequence[Any]],
    gamma: float = 1.0,
    *,
    turn_ids: torch.Tensor | None = None,
    step_weight: float = 1.0,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GiGPO (Feng et al., https://arxiv.org/abs/2505.10978): groups inside the group.

        A_ik = A^episode_i + ω A^step_ik

    A^episode compares whole episodes of a group, as GRPO does. A^step compares the turns of that
    group which were taken in the same state, at whatever turn it was reached, by their discounted
    reward-to-go; a turn whose state no other turn shares gets 0 there.

    Args:
        anchor_states: For each episode the state before each of its turns; what the environment's
            `get_state_description` said (`Trajectory.states`).
        gamma: Discount per turn.
        step_weight: ω.
        norm_by_std: Divide both terms by their groups' standard deviations.
    """
    turns = Turns.from_batch(token_level_rewards, response_mask, turn_ids)
    rewards = turns.sum(token_level_rewards)
    precision = token_level_rewards.dtype
    groups = Groups.from_index(index, rewards, precision)
    advantages = groups.relative(rewards.sum(1), norm_by_std, epsilon)[:, None]

    to_go = discounted_suffix_sum(rewards, turns.exists, gamma)
    taken = to_go[turns.exists]
    anchors = Groups.from_index(_anchor_labels(anchor_states, groups, turns), taken, precision)
    step = torch.zeros_like(to_go)
    step[turns.exists] = anchors.relative(taken, norm_by_std, epsilon)
    combined = advantages + step_weight * step
    return turns.on_tokens(combined), turns.on_tokens(to_go)


def _anchor_labels(
    anchor_states: Sequence[Sequence[Any]], groups: Groups, turns: Turns
) -> list[int]:
    """A number for each existing turn, row by row: the same for the same state of one group."""
    labels: list[int] = []
    known: dict[tuple[int, Any], int] = {}
    num_turns = turns.exists.sum(1).tolist()
    rows = zip(groups.ids.tolist(), anchor_states, turns.numbers.tolist(), num_turns, strict=True)
    for row, (group, states, all_numbers, count) in enumerate(rows):
        numbers = all_numbers[:count]
        if numbers and numbers[-1] >= len(states):
            raise ConfigError(
                f"gigpo got {len(states)} anchor states for episode {row}, which has "
                f"{numbers[-1] + 1} turns. Pass the state before each turn (Trajectory.states)."
            )
        labels += [known.setdefault((group, states[k]), len(known)) for k in numbers]
    return labels
