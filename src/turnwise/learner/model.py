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
        options: Any = {"layout": layout, "gradient_checkpointing": bool(gradient_checkpointing)}
        self._trunk = Trunk(policy, **options)
        self._critic_trunk: Trunk | None = None
        self.critic: nn.Module | None = None
        if critic is policy:
            critic = "shared"
        if critic == "shared":
            self._critic_trunk = self._trunk
        elif isinstance(critic, str) and critic != "separate":
            raise ConfigError(
                f"critic got {critic!r}, expected 'shared', 'separate', a model or None"
            )
        elif critic is not None:
            self.critic = _copy_as_critic(policy) if critic == "separate" else critic
            self._critic_trunk = Trunk(self.critic, **options)
        self.value_head: nn.Linear | None = None
        if self._critic_trunk is not None:
            # In float32 at least: values are regressed, and bf16 has only three digits.
            dtype = torch.promote_types(self._critic_trunk.model.dtype, torch.float32)
            # A model without weights gets them when it is sharded; those of the head are known.
            device = torch.device("cpu") if self.device.type == "meta" else self.device
            head = nn.Linear(self._critic_trunk.width, 1, dtype=dtype, device=device)
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            self.value_head = head

    @property
    def device(self) -> torch.device:
        device: torch.device = self._trunk.model.device
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
        models = [trunk.model for trunk in self._trunks]
        return [LayerShape.from_model(model, has_adapters=has_adapters(model)) for model in models]

    @property
    def context(self) -> Context:
        """The learners that split the tokens of each pack; this one alone by default."""
        return self._trunk.context

    def split_over(self, context: Context) -> None:
        """Split the tokens of each pack over the learners of a group, which all have the pack."""
        size = context.size
        for trunk in self._trunks if size > 1 else []:
            config, name = trunk.model.config.get_text_config(), type(trunk.model).__name__
            heads = config.num_attention_heads
            key_heads = getattr(config, "num_key_value_heads", None) or heads
            if heads % size or (key_heads % size and size % key_heads):
                raise ConfigError(
                    f"ray.context_parallel_size got {size}, and {name} has {heads} attention heads "
                    f"and {key_heads} key heads. Expected a divisor of the first that divides the "
                    "second, or is a multiple of it."
                )
            if trunk.layout != "packed":
                raise ConfigError(
                    f"ray.context_parallel_size got {size}, expected 1: episodes of {name} cannot "
                    "be packed"
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
    def merges_adapters(self) -> bool:
        """Whether the policy is computed with merged adapters, as an engine may sample from it."""
        return self._trunk.merges_adapters

    @merges_adapters.setter
    def merges_adapters(self, value: bool) -> None:
        self._trunk.merges_adapters = value

    @property
    def _trunks(self) -> list[Trunk]:
        critic = self._critic_trunk
        return [self._trunk, *([] if critic in (None, self._trunk) else [critic])]

    @property
    def layout(self) -> Layout:
        """Whether episodes are packed or padded."""
        return self._trunk.layout

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
        hidden = self._trunk.hidden(ids, pack)
        sources = self.context.select(pack.sources, pack.num_tokens)
        log_probs, entropy = chosen_log_probs(
            hidden[sources.own],
            self._trunk.head,
            sources.pick(ids[pack.targets]),
            temperature=self.temperature,
        )
        log_probs, entropy = sources.gather(log_probs), sources.gather(entropy)
        values = last_values = None
        if self._critic_trunk is not None and self.value_head is not None:
            if self._critic_trunk is not self._trunk:
                hidden = self._critic_trunk.hidden(ids, pack)
            needed = torch.cat([pack.sources, pack.ends])
            selected = self.context.select(needed, pack.num_tokens)
            kept = hidden[selected.own].to(self.value_head.weight.dtype)
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
        hidden = self._trunk.hidden(ids, pack)
        sources = self.context.select(pack.sources, pack.num_tokens)
        sums = sum_squared_probs(
            hidden[sources.own], self._trunk.head, temperature=self.temperature
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


def _copy_as_critic(policy: Any) -> nn.Module:
    """Return a copy of the policy as the initial critic."""
    critic: nn.Module = copy.deepcopy(policy)
    if any("lora_" in name for name, _ in critic.named_parameters()):
        raise ConfigError(
            "critic got 'separate', which a policy with adapters cannot have. Pass the critic's "
            "model itself, or use critic='shared'."
        )
    # The output layer of a critic is not used.
    for parameter in critic.get_output_embeddings().parameters():  # type: ignore[operator]
        if parameter is not critic.get_input_embeddings().weight:  # type: ignore[operator]
            parameter.requires_grad_(False)
    return critic
