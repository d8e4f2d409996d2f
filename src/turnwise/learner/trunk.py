"""The hidden states of packed episodes, from an unmodified Hugging Face model.

Dropout stays off while learning: the ratio of PPO compares two policies, not two draws of noise.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch

from turnwise.errors import ConfigError
from turnwise.learner.fast.modules import Replacement, faster_modules, replaced_forwards
from turnwise.learner.fast.packed_attention import NAME, Episodes, episode_attention
from turnwise.learner.log_probs import Head
from turnwise.learner.lora import dropout_layers, merged_adapters
from turnwise.learner.packing import Pack
from turnwise.learner.workers import Context
from turnwise.models.attention import (
    UnsupportedAttention,
    attention_named,
    model_configs,
    model_lock,
    probe_attention,
)
from turnwise.models.empty import is_empty
from turnwise.models.probing import PROBE_ERRORS, UnsupportedModel, is_out_of_memory, rotary_limit

Layout: TypeAlias = Literal["packed", "padded"]

_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of the softcap of logits in configs."""
_LOG = logging.getLogger("turnwise")


class Trunk:
    """A causal language model up to its last hidden state, and the head on top of it.

    `layout` None takes "packed" where tokens reach each other by our attention alone, else
    "padded".
    """

    def __init__(
        self, model: Any, *, layout: Layout | None = None, gradient_checkpointing: bool = False
    ) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, episode_attention)
        unwrap = getattr(model, "get_base_model", None)
        # Inside of peft's wrapper; the adapters are in its layers.
        self.model = (model if unwrap is None else unwrap()).eval()
        self._configs = model_configs(self.model)
        self._replaced: list[Replacement] = []
        self._adapted: list[Replacement] = []
        self.merges_adapters = True
        """Whether layers are computed with merged adapters where an engine's are."""
        self._body = self.model.get_decoder()
        if self._body is self.model:  # Llama 4's `base_model_prefix` names no attribute
            self._body = getattr(self.model, "model", self.model)
        head = self.model.get_output_embeddings()
        if self._body is self.model or type(head) is not torch.nn.Linear:
            raise UnsupportedModel(
                f"the learner cannot compute with {type(self.model).__name__}: it has no decoder "
                "(`get_decoder`), or an output layer without adapters that is linear"
            )
        self._checkpointed: list[Any] = []
        if gradient_checkpointing:
            self.checkpoint_layers(None)
        self.layout: Layout = layout or "packed"
        self._scale = 1.0
        self._softcap: float | None = None
        self.context = Context()
        if not is_empty(self.model):
            self.probe()

    def probe(self) -> None:
        """Find out how the model can be computed; one without weights has to get them first."""
        name = type(self.model).__name__
        self._replaced = faster_modules(self.model)
        self._adapted = merged_adapters(self.model)
        try:
            self._scale, self._softcap = self._measure_head()
        except PROBE_ERRORS as error:
            if is_out_of_memory(error):
                raise
            raise UnsupportedModel(f"the learner cannot compute with {name}: {error}") from error
        if self.layout == "packed":
            try:
                # Packed episodes are independent only if nothing but our attention mixes them.
                with model_lock(self.model):
                    calls = probe_attention(self.model)
                if any(call.window != call.given_window for call in calls):
                    raise UnsupportedAttention(
                        "its attention is not told the sliding window of its mask"
                    )
            except UnsupportedAttention as reason:
                self.layout = "padded"
                text = "%s: episodes are padded, not packed, which takes more time and memory: %s"
                _LOG.warning(text, name, reason)

    @property
    def head(self) -> Head:
        """The head with its current weights."""
        embedding = self.model.get_output_embeddings()
        return Head(embedding.weight, embedding.bias, self._scale, self._softcap)

    @property
    def width(self) -> int:
        """The size of a hidden state."""
        return int(self.model.get_output_embeddings().in_features)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The layers of the body; empty if it has no list of them."""
        lists = [m for m in self._body.modules() if isinstance(m, torch.nn.ModuleList) and len(m)]
        return list(lists[0]) if lists else []

    def hidden(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        """Return the hidden state after each token of a pack: ids [N] -> [N, D].

        If learners split the pack, they are those of this learner's slice.
        """
        limit = rotary_limit(self.model.config)
        if limit is not None and pack.longest_context > limit:
            raise ConfigError(
                f"an episode has {pack.longest_context} tokens, and {type(self.model).__name__} is "
                f"used up to {limit}: beyond them its rotary frequencies (rope_type longrope or "
                f"dynamic) change for all tokens. Set limits.max_tokens={limit}."
            )
        # transformers checkpoints layers only in training mode. The modules inside them stay in
        # evaluation mode, so that dropout stays off.
        with self._learner_forward():
            try:
                for layer in self._checkpointed:
                    layer.training = True
                compute = self._packed if self.layout == "packed" else self._padded
                return compute(ids, pack)
            finally:
                for layer in self._checkpointed:
                    layer.training = False

    @contextmanager
    def _learner_forward(self) -> Iterator[None]:
        """Replace the model's attention, norms and MLPs inside the block; an engine on the same
        model has its own."""
        # Also where the backward computes layers again.
        adapted = self._adapted if self.merges_adapters else []
        configs = self._configs if self.layout == "packed" else []
        with (
            model_lock(self.model),
            replaced_forwards([*self._replaced, *adapted]),
            attention_named(configs, NAME),
        ):
            yield

    def _packed(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        lengths, prefixes = pack.lengths, pack.prefixes
        if num_added := self.context.padding(pack.num_tokens):  # an episode of its own
            lengths, prefixes = (*lengths, num_added), (*prefixes, torch.arange(0))
        output = self._body(
            input_ids=self.context.slice(ids)[None],
            position_ids=self.context.slice(pack.positions)[None],
            use_cache=False,
            episodes=Episodes(lengths, prefixes, self.context),
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _padded(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        # A row for each segment, which begins with the tokens before it.
        lengths = torch.tensor(pack.lengths, device=ids.device)
        rows = torch.arange(len(lengths), device=ids.device).repeat_interleave(lengths)
        at = (rows, pack.positions)
        shape = (len(lengths), int(pack.positions.max()) + 1)
        grid = ids.new_zeros(shape).index_put_(at, ids)
        for row, prefix in enumerate(pack.prefixes):
            grid[row, : len(prefix)] = ids[prefix.to(ids.device)]
        # Without a mask: padding is on the right, and a causal model does not attend to it. With a
        # mask, padding may have nothing to attend to within a sliding window, which gives NaN.
        output = self._body(input_ids=grid, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[at]
        return hidden

    def checkpoint_layers(self, number: int | None) -> None:
        """Compute the activations of the first layers again in the backward; None: of all."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            # The backward computes layers again, outside of the context of the forward.
            return nullcontext(), self._learner_forward()

        self.model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={
                "use_reentrant": False,
                # Only the adapters' dropout is random.
                "preserve_rng_state": bool(dropout_layers(self.model)),
                "context_fn": contexts,
            }
        )
        layers = [m for m in self.model.modules() if isinstance(m, GradientCheckpointingLayer)]
        self._checkpointed = layers[:number]

    @torch.no_grad()
    def _measure_head(self) -> tuple[float, float | None]:
        """Return the scale and the softcap that the model applies to its logits after the head.

        The hidden states are 1 here and the logits of the head known numbers, both in float64: what
        the model makes of them is not blurred by rounding.
        """
        head = self.model.get_output_embeddings()
        plain_body = self._body.forward
        logits = torch.linspace(-64, 64, head.out_features, device=self.model.device).double()

        def body(*arguments: Any, **named: Any) -> Any:
            output = plain_body(*arguments, **named)
            output.last_hidden_state = torch.ones_like(output.last_hidden_state).double()
            return output

        def known_logits(hidden: torch.Tensor) -> torch.Tensor:
            return hidden[..., :1] * logits

        ids = torch.zeros(1, 1, dtype=torch.long, device=self.model.device)
        replaced: list[Replacement] = [(self._body, body), (head, known_logits)]
        with model_lock(self.model), replaced_forwards(replaced):
            changed = self.model(ids, use_cache=False).logits[0, 0].double()
        config = self.model.config.get_text_config()
        softcap = next((cap for name in _SOFTCAPS if (cap := getattr(config, name, None))), None)
        scale = 1.0
        if softcap is not None:
            expected = softcap * (logits / softcap).tanh()
        else:
            scale = float(changed @ logits / (logits @ logits))
            expected = scale * logits
        # A model may round its logits to bfloat16; any other function is further away.
        if not float((changed - expected).abs().max()) <= 0.01 * float(expected.abs().max()):
            raise ValueError(
                "it changes hidden states or logits at its output layer otherwise than by a factor "
                "or a softcap"
            )
        return scale, softcap
