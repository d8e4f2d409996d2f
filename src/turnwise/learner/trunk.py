"""The hidden states of packed episodes, from an unmodified Hugging Face model.

Dropout stays off while learning: the ratio of PPO compares two policies, not two draws of noise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal, TypeAlias

import torch

from turnwise.learner.context import Context
from turnwise.learner.fast.modules import faster_modules
from turnwise.learner.fast.packed_attention import NAME, Episodes, attention_configs
from turnwise.learner.fast.replaced import Replacement, replaced_forwards
from turnwise.learner.head import Head
from turnwise.learner.lora import has_adapter_dropout
from turnwise.learner.packing import Pack, make_packs
from turnwise.models.attention import attention_named
from turnwise.models.empty import is_empty
from turnwise.models.model_lock import ModelLock, lock_of
from turnwise.models.probing import (
    PROBE_ERRORS,
    UnsupportedModel,
    is_out_of_memory,
    largest_gap,
    relative_gap,
    short_windows,
)
from turnwise.plain_mode import is_plain

Layout: TypeAlias = Literal["packed", "padded"]

# With a larger share of needed tokens than this, all tokens are computed.
_WORTH_SKIPPING = 0.8
_LOG = logging.getLogger("turnwise")


class Trunk:
    """A causal language model up to its last hidden state, and the head on top of it.

    `layout` None takes "packed" where the model runs with our attention, else "padded", as in plain
    mode. To find out, two episodes are computed and compared with a plain forward.
    """

    def __init__(
        self,
        model: Any,
        *,
        layout: Layout | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        self.model = _without_wrapper(model).eval()
        self._configs = attention_configs(self.model)
        self._replaced: list[Replacement] = []
        self._body = self.model.get_decoder()
        self._checkpointed: list[Any] = []
        if gradient_checkpointing:
            self.checkpoint_layers(None)
        default: list[Layout] = ["padded"] if is_plain("learner.packing") else ["packed", "padded"]
        self._layouts: list[Layout] = default if layout is None else [layout]
        self.layout = self._layouts[0]
        self._scale = 1.0
        self._softcap: float | None = None
        self._last_mlp: Any = None
        self._is_exact_with_prefixes = False
        self.context = Context()
        if not is_empty(self.model):
            self.probe()

    def probe(self) -> None:
        """Find out how the model can be computed; one without weights has to get them first."""
        self._replaced = faster_modules(self.model, self.layers)
        self._scale, self._softcap = self._measure_head()
        problem: Exception | None = None
        for layout in self._layouts:
            self.layout = layout
            try:
                with short_windows(self.model, self._configs):
                    gap = self._gap_to_plain_forward(share_prompts=False)
                    if self.layout == "packed" and not is_plain("learner.shared_prefix"):
                        shared_gap = self._gap_to_plain_forward(share_prompts=True)
                        self._is_exact_with_prefixes = shared_gap <= self._tolerance
            except PROBE_ERRORS as error:
                if is_out_of_memory(error):
                    raise
                problem = error
                continue
            if gap <= self._tolerance:
                if problem is not None:
                    _warn_once(
                        f"{type(self.model).__name__}: episodes are padded to one length instead "
                        f"of packed, which takes more time and memory. Reason: {problem}"
                    )
                self._find_last_mlp()
                return
            problem = ValueError(f"its logits are {gap:.2g} away from those of a plain forward")
        raise UnsupportedModel(
            f"the learner cannot compute with {type(self.model).__name__}: {problem}"
        ) from problem

    @property
    def _lock(self) -> ModelLock:
        return lock_of(self.model)  # not kept: a copy of this has a model and a lock of its own

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

    @property
    def shares_prefixes(self) -> bool:
        """Whether packs may hold a prefix once for several episodes."""
        return self.layout == "packed" and self._is_exact_with_prefixes

    def hidden(
        self, ids: torch.Tensor, pack: Pack, needed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the hidden state after each token of a pack: ids [N] -> [N, D].

        If learners split the pack, they are those of this learner's slice. With `needed` [R] only
        the states of these tokens are right: after the last attention no token depends on another,
        so that the last MLP is computed for them alone.
        """
        with self._lock, self._checkpointing(), self._learner_forward():
            if self.layout == "padded":
                return self._padded(ids, pack)
            own = self.context.slice(ids)
            if needed is not None:
                needed = self.context.own_part(needed, len(ids))
            with self._last_mlp_only_for(needed, len(own)):
                return self._packed(own, pack)

    @contextmanager
    def _last_mlp_only_for(self, needed: torch.Tensor | None, num_tokens: int) -> Iterator[None]:
        if needed is None or self._last_mlp is None or self._checkpointed[-1:] == self.layers[-1:]:
            yield
            return
        at = needed.unique()  # type: ignore[no-untyped-call]
        if len(at) > _WORTH_SKIPPING * num_tokens:
            yield
            return
        plain = self._last_mlp.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x).index_copy(1, at, plain(x.index_select(1, at)))

        with replaced_forwards([(self._last_mlp, forward)]):
            yield

    @contextmanager
    def _learner_forward(self) -> Iterator[None]:
        """Replace the model's attention, norms and MLPs inside the block; an engine on the same
        model has its own."""
        # Also where the backward computes layers again.
        with self._lock, replaced_forwards(self._replaced):
            if self.layout == "padded":
                yield
                return
            with attention_named(self._configs, NAME):
                yield

    def _packed(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        lengths, prefixes = pack.lengths, pack.prefixes
        if num_added := self.context.padding(pack.num_tokens):  # an episode of its own
            lengths, prefixes = (*lengths, num_added), (*prefixes, torch.arange(0))
        output = self._body(
            input_ids=ids[None],
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

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            # The backward computes layers again, outside of the context of the forward.
            return nullcontext(), self._learner_forward()

        self.model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={
                "use_reentrant": False,
                # Only the adapters' dropout is random.
                "preserve_rng_state": has_adapter_dropout(self.model),
                "context_fn": contexts,
            }
        )
        self._checkpointed = _checkpointable_layers(self.model)[:number]

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Put layers into training mode, since transformers checkpoints only then; the modules
        inside them stay in evaluation mode, so that dropout stays off."""
        try:
            for layer in self._checkpointed:
                layer.training = True
            yield
        finally:
            for layer in self._checkpointed:
                layer.training = False

    @property
    def _tolerance(self) -> float:
        return largest_gap(self.model.dtype)

    @torch.no_grad()
    def _measure_head(self) -> tuple[float, float | None]:
        """Return the scale and the softcap that the model applies to its logits after the head."""
        embedding = self.model.get_output_embeddings()
        if type(embedding) is not torch.nn.Linear:
            raise UnsupportedModel(
                f"the learner takes a linear output layer, {type(self.model).__name__} has "
                f"{type(embedding).__name__}. Adapters go on the layers below it."
            )
        config = self.model.config.get_text_config()
        softcap = getattr(config, "final_logit_softcapping", None)
        if softcap is not None:
            return 1.0, float(softcap)
        ids = self._probe(5, 1)[None]
        own = self.model(ids, use_cache=False).logits.double()
        plain = embedding(self._body(ids, use_cache=False).last_hidden_state).double()
        scale = float((own * plain).sum() / plain.square().sum().clamp(min=1e-30))
        # A difference from 1 that is only rounding is no scale.
        return (1.0 if abs(scale - 1.0) < 1e-2 else scale), None

    @torch.no_grad()
    def _find_last_mlp(self) -> None:
        """Find the MLP after the last attention, if tokens can be left out of it without effect on
        the others."""
        layers = self.layers
        mlp = getattr(layers[-1], "mlp", None) if layers and self.layout == "packed" else None
        if mlp is None or is_plain("learner.last_mlp"):
            return
        present = torch.ones(1, 9, dtype=torch.bool)
        (pack,) = make_packs(present, torch.zeros_like(present), torch.arange(1), budget=9)
        pack, ids = pack.to(self.model.device), self._probe(9, 7)
        needed = torch.tensor([2, 5], device=self.model.device)
        expected = self.hidden(ids, pack)[needed]
        self._last_mlp = mlp
        try:
            got = self.hidden(ids, pack, needed)[needed]
        except PROBE_ERRORS as error:
            self._last_mlp = None
            if is_out_of_memory(error):
                raise
            return
        if not torch.allclose(got, expected, rtol=self._tolerance, atol=self._tolerance):
            self._last_mlp = None

    @torch.no_grad()
    def _gap_to_plain_forward(self, *, share_prompts: bool) -> float:
        """Return the largest difference in logits of episodes that are computed together.

        Two of them have the same prompt.
        """
        first = self._probe(11, 7)
        episodes = [first, self._probe(4, 5), torch.cat([first[:6], self._probe(3, 11)])]
        present, sampled = torch.zeros(2, len(episodes), 11, dtype=torch.bool)
        ids = torch.zeros(len(episodes), 11, dtype=torch.long)
        for row, episode in enumerate(episodes):
            present[row, : len(episode)] = True
            sampled[row, 6 : len(episode)] = True
            ids[row, : len(episode)] = episode
        rows, shared = torch.arange(len(episodes)), ids if share_prompts else None
        (pack,) = make_packs(present, sampled, rows, 99, shared)
        pack = pack.to(self.model.device)
        hidden = self.hidden(pack.take(ids.to(self.model.device)), pack)
        got = self.head.logits(hidden)
        plain = [self.model(episode[None], use_cache=False).logits[0] for episode in episodes]
        places = zip(pack.row_of.tolist(), pack.positions.tolist(), strict=True)
        expected = torch.stack([plain[row][position] for row, position in places])
        return relative_gap(got, expected)

    def _probe(self, length: int, factor: int) -> torch.Tensor:
        vocab_size = int(self.model.get_input_embeddings().num_embeddings)
        probe: torch.Tensor = torch.arange(length, device=self.model.device) * factor + 3
        return probe % vocab_size


@cache
def _warn_once(message: str) -> None:
    """Log a warning once, though policy, critic and reference are often of one class."""
    _LOG.warning(message)


def _without_wrapper(model: Any) -> Any:
    """Return the model inside peft's wrapper; the adapters are in its layers."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def _checkpointable_layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
