"""The policy and its critic: one forward gives log-probs, entropy and values."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from turnwise.errors import ConfigError
from turnwise.learner.batch import PPOBatch
from turnwise.learner.log_probs import chosen_log_probs, sum_squared_probs
from turnwise.learner.lora import has_adapters
from turnwise.learner.memory import LayerShape
from turnwise.learner.packing import Pack, make_packs
from turnwise.learner.trunk import Layout, Trunk
from turnwise.learner.workers import Context

_NO_BUDGET = 1 << 62


@dataclass(frozen=True)
class Outputs:
    """The outputs of a forward for the policy's tokens: [b, T] each, 0 on all other tokens."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor | None
    """Of the state in which each token was sampled; None without a critic."""
    last_values: torch.Tensor | None
    """[b], the value after the last token, with which a truncated episode is bootstrapped."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class PolicyValueModel(nn.Module):
    """A causal language model, and a value head on its trunk or on a separate one.

    `critic`: "shared" puts the value head on the policy's trunk, "separate" on a copy of it; a
    model is the critic's trunk; None means no critic, as for GRPO. The head is initialised to
    zero, so that the first values are 0 and not noise.

    >>> from turnwise import load_model
    >>> model = PolicyValueModel(load_model("tiny", device="cpu").model, critic="shared")
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> model(ids, response_mask=torch.tensor([[0, 1, 1]]))["values"]
    tensor([[0., 0., 0.]], grad_fn=<IndexPutBackward0>)
    """

    def __init__(
        self,
        policy: Any,
        critic: Literal["shared", "separate"] | Any | None = "shared",
        *,
        temperature: float = 1.0,
        layout: Layout | None = None,
        gradient_checkpointing: bool | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.temperature = temperature
        self.gradient_checkpointing = gradient_checkpointing
        """Whether activations are computed again in the backward; None: where memory is short."""
        if isinstance(critic, str) and critic not in ("shared", "separate"):
            raise ConfigError(
                f"critic got {critic!r}, expected 'shared', 'separate', a model or None"
            )
        options: Any = {"layout": layout, "gradient_checkpointing": bool(gradient_checkpointing)}
        self.trunk = Trunk(policy, **options)
        """Of the policy."""
        self._trunks = [self.trunk]
        self.critic: nn.Module | None = None
        if critic is not None and critic != "shared" and critic is not policy:
            self.critic = _copy_as_critic(policy) if critic == "separate" else critic
            self._trunks.append(Trunk(self.critic, **options))
        self.value_head: nn.Linear | None = None
        if critic is not None:
            trunk = self._trunks[-1]
            # In float32 at least: values are regressed, and bf16 has only three digits.
            dtype = torch.promote_types(trunk.model.dtype, torch.float32)
            # A model without weights gets them when it is sharded; those of the head are known.
            device = torch.device("cpu") if self.device.type == "meta" else self.device
            self.value_head = nn.Linear(trunk.width, 1, dtype=dtype, device=device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.trunk.model.device
        return device

    @property
    def has_critic(self) -> bool:
        return self.value_head is not None

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of the policy, and of a separate critic."""
        return [layer for trunk in self._trunks for layer in trunk.layers]

    @property
    def layer_shapes(self) -> list[LayerShape]:
        """The shapes of the models that one forward computes."""
        return [LayerShape.from_model(trunk.model) for trunk in self._trunks]

    def split_over(self, context: Context) -> None:
        """Split the tokens of each pack over the learners of a group, which all have the pack."""
        size = context.size
        for trunk in self._trunks if size > 1 else []:
            config = trunk.model.config.get_text_config()
            heads = config.num_attention_heads
            key_heads = getattr(config, "num_key_value_heads", None) or heads
            is_divisor = heads % size == 0 and (key_heads % size == 0 or size % key_heads == 0)
            if not is_divisor or trunk.layout != "packed":
                raise ConfigError(
                    f"ray.context_parallel_size got {size}: {type(trunk.model).__name__} has "
                    f"{heads} attention heads and {key_heads} key heads, and its episodes are "
                    f"{trunk.layout}. Expected packed episodes, and a divisor of the first that "
                    "divides the second, or is a multiple of it."
                )
            trunk.context = context

    def probe(self, _: object = None) -> None:
        """Find out how a model can be computed that had no weights when this was made.

        FSDP calls this as a forward, which must have an argument on a GPU (torch 2.11).
        """
        for trunk in self._trunks:
            trunk.probe()

    def checkpoint_layers(self, number: int | None) -> None:
        """Compute the activations of the first layers again in the backward; None: of all."""
        for trunk in self._trunks:
            trunk.checkpoint_layers(number)

    @property
    def layout(self) -> Layout:
        """Whether episodes are packed or padded."""
        return self.trunk.layout

    @property
    def shares_prefixes(self) -> bool:
        """Whether episodes with the same prompt can share its computation."""
        return all(trunk.layout == "packed" for trunk in self._trunks)

    def train(self, mode: bool = True) -> PolicyValueModel:
        """Stay in evaluation mode: dropout is off while learning, see `trunk`."""
        return super().train(False)

    def forward_pack(self, input_ids: torch.Tensor, pack: Pack) -> Outputs:
        """Compute a pack of the rows of a batch: input_ids [B, T] -> outputs of its rows [b, T]."""
        pack, width = pack.to(self.device), input_ids.shape[1]
        ids = pack.take(input_ids.to(self.device))
        hidden = self.trunk.hidden(ids, pack)
        sources = self.trunk.context.select(pack.sources, pack.num_tokens)
        log_probs, entropy = chosen_log_probs(
            hidden[sources.indices],
            self.trunk.head,
            sources.pick(ids[pack.targets]),
            temperature=self.temperature,
        )
        log_probs, entropy = sources.gather(log_probs), sources.gather(entropy)
        values = last_values = None
        if self.value_head is not None:
            if self.critic is not None:
                hidden = self._trunks[-1].hidden(ids, pack)
            needed = torch.cat([pack.sources, pack.ends])
            selected = self.trunk.context.select(needed, pack.num_tokens)
            kept = hidden[selected.indices].to(self.value_head.weight.dtype)
            both = selected.gather(self.value_head(kept).squeeze(1))
            values = pack.scatter_to_rows(both[: pack.num_policy_tokens], width)
            # Not a view, which the hooks of a sharded model refuse.
            last_values = both[pack.num_policy_tokens :].clone()
        return Outputs(
            pack.scatter_to_rows(log_probs, width),
            pack.scatter_to_rows(entropy, width),
            values,
            last_values,
        )

    @torch.no_grad()
    def sum_pi_squared(self, input_ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        """Return Σ_v π(v)² where each policy token of a pack was sampled: [b, T]."""
        pack, width = pack.to(self.device), input_ids.shape[1]
        ids = pack.take(input_ids.to(self.device))
        hidden = self.trunk.hidden(ids, pack)
        sources = self.trunk.context.select(pack.sources, pack.num_tokens)
        sums = sum_squared_probs(
            hidden[sources.indices], self.trunk.head, temperature=self.temperature
        )
        return pack.scatter_to_rows(sources.gather(sums), width)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        response_mask: torch.Tensor | None = None,
    ) -> Outputs:
        """Compute a whole batch [B, T]; without a response mask, for every token but the first."""
        batch = PPOBatch(
            input_ids,
            torch.zeros_like(input_ids) if response_mask is None else response_mask,
            attention_mask,
        )
        assert batch.attention_mask is not None
        present = batch.attention_mask.cpu()
        wanted = batch.response_mask.cpu()
        if response_mask is None:
            wanted = present & (present.cumsum(1) > 1)
        if not bool(present.any(1).all()):
            raise ConfigError("attention_mask has a row without a token")
        (pack,) = make_packs(present, wanted, torch.arange(len(input_ids)), _NO_BUDGET)
        return self.forward_pack(input_ids, pack)


def _copy_as_critic(policy: Any) -> Any:
    """Return a copy of the policy as the initial critic."""
    if has_adapters(policy):
        raise ConfigError(
            "critic got 'separate', which a policy with adapters cannot have. Pass the critic's "
            "model itself, or use critic='shared'."
        )
    critic = copy.deepcopy(policy)
    # The output layer of a critic is not used.
    for parameter in critic.get_output_embeddings().parameters():
        if parameter is not critic.get_input_embeddings().weight:
            parameter.requires_grad_(False)
    return critic
