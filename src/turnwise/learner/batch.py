"""A batch of episodes as rows of tokens, the input of an update."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from turnwise.chat.stream import TokenStream
from turnwise.errors import ConfigError


@dataclass
class PPOBatch:
    """B episodes of up to T tokens; all tensors are [B, T] and aligned with the tokens.

    The entries of a token are its log-prob given all before it, the value of the state in which it
    was sampled, and the reward that it earned.

    >>> batch = PPOBatch(torch.tensor([[5, 6, 7]]), torch.tensor([[0, 0, 1]]))
    >>> batch.num_policy_tokens, batch.response_mask.dtype
    (1, torch.bool)
    """

    input_ids: torch.Tensor
    """Every token of the episode: prompts, sampled tokens, observations."""
    response_mask: torch.Tensor
    """Set on the tokens that the policy sampled; only these are trained on."""
    attention_mask: torch.Tensor | None = None
    """Not set on padding, which may be on either side; None means that there is none."""
    sampler_log_probs: torch.Tensor | None = None
    """Log-probs at the moment of sampling."""
    old_log_probs: torch.Tensor | None = None
    """The learner's own log-probs before the update, if they were recomputed. If both are given,
    their ratio weights the loss (importance correction)."""
    learner_log_probs: torch.Tensor | None = None
    """The learner's own log-probs before the update, if they are known already: only recorded and
    compared with the sampler's, without effect on the loss."""
    advantages: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    """The targets of the values; needed to train a critic."""
    values: torch.Tensor | None = None
    """The critic's values at rollout time."""
    ref_log_probs: torch.Tensor | None = None
    """Log-probs of the reference model; needed for a KL term in the loss."""
    rewards: torch.Tensor | None = None
    """On the token that earned them."""
    dones: torch.Tensor | None = None
    """Set on a token after which an episode ended."""
    branches: Sequence[Sequence[tuple[int, int]]] | None = None
    """For each episode the branches of its stream (`TokenStream.branches`), counted in tokens; None
    if no episode has any. A last one without tokens says where the episode's own conversation ends,
    if not with the stream."""
    sampler_is_exact: bool = True
    """Whether the sampler's log-probs equal the learner's; if not, the update computes
    `old_log_probs` where they are missing."""

    def __post_init__(self) -> None:
        shape = self.input_ids.shape
        if len(shape) != 2:
            raise ConfigError(f"input_ids got shape {tuple(shape)}, expected [episodes, tokens]")
        for name, tensor in self._tensors():
            if tensor.shape != shape:
                got, wanted = tuple(tensor.shape), tuple(shape)
                raise ConfigError(f"{name} got shape {got}, expected that of input_ids, {wanted}")
        if self.attention_mask is None:
            self.attention_mask = torch.ones_like(self.input_ids)
        self.attention_mask = self.attention_mask.bool()
        self.response_mask = self.response_mask.bool()
        if bool((self.response_mask & ~self.attention_mask).any()):
            raise ConfigError(
                "response_mask is set where attention_mask is not: padding cannot be trained on"
            )

    @classmethod
    def from_streams(cls, streams: Sequence[TokenStream], **tensors: Any) -> PPOBatch:
        """Return a batch of recorded episodes, padded on the right; `tensors` are other fields."""
        if not streams:
            raise ConfigError("a batch needs at least one episode, got none")

        def padded(rows: Iterable[Any], dtype: torch.dtype) -> torch.Tensor:
            return pad_sequence([torch.as_tensor(row, dtype=dtype) for row in rows], True)

        response = padded((stream.mask for stream in streams), torch.bool)
        log_probs = padded((stream.log_probs for stream in streams), torch.float32)
        branches = [tuple(stream.branches) for stream in streams]
        return cls(
            padded((stream.ids for stream in streams), torch.long),
            response,
            padded(([True] * len(stream) for stream in streams), torch.bool),
            sampler_log_probs=log_probs.masked_fill_(~response, 0.0),
            branches=branches if any(branches) else None,
            **tensors,
        )

    @classmethod
    def from_mapping(cls, data: PPOBatch | Mapping[str, Any]) -> PPOBatch:
        """Return a batch from a plain mapping, as hand-written training loops have them.

        Tensors that are narrower than `input_ids` belong to its last columns, the response.
        """
        if isinstance(data, PPOBatch):
            return data
        if "input_ids" not in data or "response_mask" not in data:
            raise ConfigError(
                f"a batch needs input_ids and response_mask, got {', '.join(map(str, data))}"
            )
        ids = torch.as_tensor(data["input_ids"])
        responses = ids if data.get("responses") is None else torch.as_tensor(data["responses"])
        if ids[:, -responses.shape[1] :].tolist() != responses.tolist():
            raise ConfigError(
                "the last columns of input_ids are not the responses. Put prompt and response "
                "together into input_ids: torch.cat([prompts, responses], 1)."
            )
        names = {field.name for field in dataclasses.fields(cls)}
        fields: dict[str, Any] = {k: data[k] for k in names if data.get(k) is not None}
        for name in fields.keys() - {"branches", "sampler_is_exact"}:
            value = fields[name] = torch.as_tensor(fields[name])
            missing = ids.shape[-1] - value.shape[-1]
            if value.dim() == 2 and missing > 0 and name != "attention_mask":
                fields[name] = torch.nn.functional.pad(value, (missing, 0))
        rewards = fields.get("rewards")
        if rewards is not None and rewards.dim() == 1:
            fields["rewards"] = on_last_token(rewards, fields["response_mask"].bool())
        return cls(**fields)

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, x) for name, x in vars(self).items() if isinstance(x, torch.Tensor)]

    def to(self, device: torch.device | str) -> PPOBatch:
        """Return the batch on another device."""
        return self._with(lambda x: x.to(device, non_blocking=True))

    def select(self, rows: torch.Tensor) -> PPOBatch:
        """Return these episodes, in this order."""
        chosen = self._with(lambda x: x[rows.to(x.device)])
        if self.branches is not None:
            chosen.branches = [self.branches[row] for row in rows.tolist()]
        return chosen

    def for_imitation(self) -> PPOBatch:
        """Return the same tokens with advantages of 1, for supervised learning."""
        return PPOBatch(
            self.input_ids,
            self.response_mask,
            self.attention_mask,
            old_log_probs=torch.zeros(self.input_ids.shape),
            advantages=torch.ones(self.input_ids.shape),
            branches=self.branches,
        )

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> PPOBatch:
        # Not checked again: on a GPU that would wait for what it computes.
        changed = copy.copy(self)
        for name, tensor in self._tensors():
            setattr(changed, name, change(tensor))
        return changed

    @property
    def behaviour_log_probs(self) -> torch.Tensor:
        """The log-probs that the ratio of the policy loss compares with."""
        old = self.old_log_probs
        return self.need("sampler_log_probs") if old is None else old

    def need(self, name: str) -> torch.Tensor:
        """Return a field; raise if the batch does not have it."""
        value: torch.Tensor | None = getattr(self, name)
        if value is None:
            raise ConfigError(f"this update needs {name}, which the batch does not have")
        return value

    @property
    def num_policy_tokens(self) -> int:
        return int(self.response_mask.sum())

    def __len__(self) -> int:
        return len(self.input_ids)


def on_last_token(scores: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Return scores of whole episodes [B] on the last policy token of each: [B, T]."""
    counted = response_mask.cumsum(1)
    is_last = response_mask & (counted == response_mask.sum(1, keepdim=True))
    return torch.where(is_last, scores[:, None], torch.zeros((), dtype=scores.dtype))
