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

from turnwise.errors import TurnwiseError
from turnwise.learner.fast.gated_mlp import lean_mlps, replaceable_mlps
from turnwise.learner.fast.packed_attention import NAME, Episodes, attention_configs
from turnwise.learner.fast.rms_norm import fused_norms, replaceable_norms
from turnwise.learner.head import Head
from turnwise.learner.lora import has_adapter_dropout
from turnwise.learner.packing import Pack, make_packs
from turnwise.models.attention import attention_named
from turnwise.plain_mode import is_plain

Layout: TypeAlias = Literal["packed", "padded"]

# With more tokens to be read than this share, all are computed.
_WORTH_SKIPPING = 0.8
_LOG = logging.getLogger("turnwise")
# A sliding window while a model is tried: shorter than the episodes that it is tried with.
_PROBE_WINDOW = 3
# What comes of a model that does not take our attention.
_MISFITS = (NotImplementedError, TypeError, AttributeError, KeyError, RuntimeError, ValueError)


class UnsupportedModel(TurnwiseError, TypeError):
    """A model that the learner cannot compute with."""


class Trunk:
    """A causal language model up to its last hidden state, and the head on top of it.

    `layout` None: packed where the model takes our attention, else padded, as in plain mode. A
    model's name proves nothing: two episodes are computed and compared with a plain forward.
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
        fuses_norms = self.model.device.type == "cuda" and not is_plain("learner.rms_norm")
        self._norms = replaceable_norms(self.model) if fuses_norms else []
        self._mlps = [] if is_plain("learner.gated_mlp") else replaceable_mlps(self.model)
        self._body = self.model.get_decoder()
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            self._enable_checkpointing()
        self.layout: Layout
        self._scale, self._softcap = self._measure_head()
        self._last_mlp: Any = None
        problem: Exception | None = None
        default: list[Layout] = ["padded"] if is_plain("learner.packing") else ["packed", "padded"]
        tried: list[Layout] = default if layout is None else [layout]
        for self.layout in tried:
            try:
                with _short_windows(self.model, self._configs):
                    gap = self._gap_to_plain_forward()
            except _MISFITS as error:
                if _is_out_of_memory(error):
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
    def head(self) -> Head:
        """The head as it is now; a trainer may have put other weights into it."""
        embedding = self.model.get_output_embeddings()
        return Head(embedding.weight, embedding.bias, self._scale, self._softcap)

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return int(self.model.get_output_embeddings().in_features)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The layers of the body, where it has such a list."""
        lists = [m for m in self._body.modules() if isinstance(m, torch.nn.ModuleList) and len(m)]
        return list(lists[0]) if lists else []

    @property
    def shares_prefixes(self) -> bool:
        """Whether packs may hold an opening once for several episodes; not by the GPU's kernel."""
        on_cpu = self.model.device.type == "cpu"
        return self.layout == "packed" and on_cpu and not is_plain("learner.shared_prefix")

    def hidden(
        self, ids: torch.Tensor, pack: Pack, read: torch.Tensor | None = None
    ) -> torch.Tensor:
        """After each token of a pack: ids [N]; [N, D].

        With `read` [R] only what stands at these tokens is right: no token sees another after the
        last attention, so what comes behind it is not computed for the rest.
        """
        with self._checkpointing(), self._our_way():
            if self.layout == "padded":
                return self._padded(ids, pack)
            with self._reading(read, len(ids)):
                return self._packed(ids, pack)

    @contextmanager
    def _reading(self, read: torch.Tensor | None, num_tokens: int) -> Iterator[None]:
        if read is None or self._last_mlp is None or self.gradient_checkpointing:
            yield
            return
        at = read.unique()  # type: ignore[no-untyped-call]
        if len(at) > _WORTH_SKIPPING * num_tokens:
            yield
            return
        mlp, plain = self._last_mlp, self._last_mlp.forward
        before = vars(mlp).get("forward")

        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x).index_copy(1, at, plain(x.index_select(1, at)))

        mlp.forward = forward
        try:
            yield
        finally:
            del mlp.forward
            if before is not None:
                mlp.forward = before

    @contextmanager
    def _our_way(self) -> Iterator[None]:
        """The model computes with our parts meanwhile; an engine on it has its own."""
        with fused_norms(self._norms), lean_mlps(self._mlps):
            if self.layout == "padded":
                yield
                return
            with attention_named(self._configs, NAME):
                yield

    def _packed(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        output = self._body(
            input_ids=ids[None],
            position_ids=pack.positions[None],
            use_cache=False,
            episodes=Episodes(pack.lengths, pack.openings),
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _padded(self, ids: torch.Tensor, pack: Pack) -> torch.Tensor:
        shape = (len(pack.lengths), max(pack.lengths))
        at = (pack.row_of, pack.positions)
        grid = ids.new_zeros(shape).index_put_(at, ids)
        # Without a mask: padding stands behind every token, where a causal model does not look. A
        # mask can leave padding nothing to look at within its window, and NaN comes of that.
        output = self._body(input_ids=grid, use_cache=False)
        hidden: torch.Tensor = output.last_hidden_state[at]
        return hidden

    def _enable_checkpointing(self) -> None:
        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            # Layers are computed again during the backward, after the forward's own context.
            return nullcontext(), self._our_way()

        self.model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={
                "use_reentrant": False,
                # Nothing here is random but the adapters' dropout.
                "preserve_rng_state": has_adapter_dropout(self.model),
                "context_fn": contexts,
            }
        )

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Transformers checkpoints layers in training mode only; what is inside them stays as it
        is, so that dropout stays off."""
        layers = _checkpointed_layers(self.model) if self.gradient_checkpointing else []
        try:
            for layer in layers:
                layer.training = True
            yield
        finally:
            for layer in layers:
                layer.training = False

    @property
    def _tolerance(self) -> float:
        return 1e-3 if self.model.dtype in (torch.float32, torch.float64) else 0.1

    @torch.no_grad()
    def _measure_head(self) -> tuple[float, float | None]:
        """Whether the model scales or bounds its logits after the head."""
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
        # What rounding leaves is no scale.
        return (1.0 if abs(scale - 1.0) < 1e-2 else scale), None

    @torch.no_grad()
    def _find_last_mlp(self) -> None:
        """The part behind the last attention, if leaving it out changes nothing elsewhere."""
        layers = self.layers
        mlp = getattr(layers[-1], "mlp", None) if layers and self.layout == "packed" else None
        if mlp is None or is_plain("learner.last_mlp"):
            return
        present = torch.ones(1, 9, dtype=torch.bool)
        (pack,) = make_packs(present, torch.zeros_like(present), torch.arange(1), budget=9)
        pack, ids = pack.to(self.model.device), self._probe(9, 7)
        read = torch.tensor([2, 5], device=self.model.device)
        expected = self.hidden(ids, pack)[read]
        self._last_mlp = mlp
        try:
            got = self.hidden(ids, pack, read)[read]
        except _MISFITS as error:
            self._last_mlp = None
            if _is_out_of_memory(error):
                raise
            return
        if not torch.allclose(got, expected, rtol=self._tolerance, atol=self._tolerance):
            self._last_mlp = None

    @torch.no_grad()
    def _gap_to_plain_forward(self) -> float:
        """Of two episodes of different length computed together, in logits."""
        episodes = [self._probe(11, 7), self._probe(4, 5)]
        present = torch.zeros(2, 11, dtype=torch.bool)
        for row, episode in enumerate(episodes):
            present[row, : len(episode)] = True
        (pack,) = make_packs(present, torch.zeros_like(present), torch.arange(2), budget=15)
        pack = pack.to(self.model.device)
        hidden = self.hidden(torch.cat(episodes), pack)
        got = self.head.logits(hidden).float()
        plain = [self.model(episode[None], use_cache=False).logits[0] for episode in episodes]
        expected = torch.cat(plain).float()
        return float((got - expected).abs().max() / (1.0 + expected.abs().max()))

    def _probe(self, length: int, factor: int) -> torch.Tensor:
        num_words = int(self.model.get_input_embeddings().num_embeddings)
        probe: torch.Tensor = torch.arange(length, device=self.model.device) * factor + 3
        return probe % num_words


@cache
def _warn_once(message: str) -> None:
    """Policy, critic and reference are often models of one class."""
    _LOG.warning(message)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory is what was missing; the CPU's allocator has no exception of its own."""
    texts = ("out of memory", "allocate memory", "alloc_failed")
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in texts)
    )


@contextmanager
def _short_windows(model: Any, configs: list[Any]) -> Iterator[None]:
    """Every sliding window and attention chunk of a model is `_PROBE_WINDOW` tokens long meanwhile.

    A few tokens then reach past it, and show whether a forward keeps to it. Some layers read it
    from their config, some from themselves.
    """
    names = ("sliding_window", "attention_chunk_size")
    found = [
        (holder, name, vars(holder)[name])
        for holder in (*configs, *model.modules())
        for name in names
        if type(vars(holder).get(name)) is int
    ]
    try:
        for holder, name, _ in found:
            setattr(holder, name, _PROBE_WINDOW)
        yield
    finally:
        for holder, name, value in found:
            setattr(holder, name, value)


def _without_wrapper(model: Any) -> Any:
    """The model inside peft's wrapper; its adapters sit in its layers all the same."""
    unwrap = getattr(model, "get_base_model", None)
    return model if unwrap is None else unwrap()


def _checkpointed_layers(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
