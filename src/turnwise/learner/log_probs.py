"""Log-probs and entropy of chosen tokens, without holding [tokens × vocabulary].

The logits are computed a chunk of tokens at a time, and again in the backward. A custom backward
takes less memory than checkpointing each chunk: it saves one number per token, works in place, and
accumulates the gradient of the head in one tensor instead of one [vocabulary × width] per chunk.

On a GPU two kernels replace the passes over a float32 copy of the logits
(`fast/kernels.py`). Where it has memory to spare, the logits are one chunk that is kept
for the backward, which saves one matrix product of four.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.autograd.function import once_differentiable

from turnwise.errors import ConfigError
from turnwise.learner.fast import load_kernels
from turnwise.learner.memory import free_memory

# Logits in one chunk: on a CPU about the size of a cache, on a GPU enough to keep it busy. Kernels
# need no float32 copies: with larger chunks the gradient of the head is added to less often.
_CPU_CHUNK = 1 << 22
_GPU_CHUNK = 1 << 25
_KERNEL_CHUNK = 1 << 27
_KEPT_SHARE = 0.25
"""Most of the free memory that kept logits may take."""


@dataclass(frozen=True)
class Head:
    """The map from the last hidden state to logits: s · c · tanh((x W + b) / c)."""

    weight: torch.Tensor
    """[V, D]."""
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None
    """c; None means no bound."""

    def logits(self, hidden: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
        """Return the logits [n, V], in float32 at least, as a new tensor."""
        raw = F.linear(hidden, self.weight, self.bias)
        x = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.softcap is not None:
            x = self.softcap * (x / self.softcap).tanh()
        factor = self.scale / temperature
        return x if factor == 1.0 else x * factor


def chosen_log_probs(
    hidden: torch.Tensor,
    head: Head,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log π(target) after each hidden state, and the entropy: two [M], float32 or wider.

    hidden: [M, D]; targets: [M]. Both have gradients.
    """
    if not temperature > 0:
        raise ConfigError(
            f"temperature got {temperature}, expected a number above 0: a greedy policy has no "
            "log-probs to learn from"
        )
    kernels = _kernels_for(head, hidden)
    keeps_logits = False
    if kernels is not None and torch.is_grad_enabled():
        size = len(hidden) * len(head.weight) * hidden.element_size()
        keeps_logits = size <= _KEPT_SHARE * free_memory(hidden.device)
    if chunk_tokens is None:
        size = _KERNEL_CHUNK if kernels is not None else _torch_chunk(hidden)
        chunk_tokens = len(hidden) if keeps_logits else size // len(head.weight)
    both: tuple[torch.Tensor, torch.Tensor] = _ChosenLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden,
        head.weight,
        head.bias,
        targets,
        head,
        temperature,
        kernels,
        max(1, chunk_tokens),
        keeps_logits,
    )
    return both


@torch.no_grad()
def sum_squared_probs(
    hidden: torch.Tensor, head: Head, *, temperature: float = 1.0
) -> torch.Tensor:
    """Return Σ_v π(v)² after each hidden state: [M, D] -> [M]."""
    chunk = max(1, _torch_chunk(hidden) // len(head.weight))
    sums = hidden.new_zeros(len(hidden), dtype=torch.float32)
    for start in range(0, len(hidden), chunk):
        rows = slice(start, start + chunk)
        sums[rows] = head.logits(hidden[rows], temperature).softmax(1).square_().sum(1)
    return sums


def _torch_chunk(hidden: torch.Tensor) -> int:
    return _GPU_CHUNK if hidden.is_cuda else _CPU_CHUNK


class _ChosenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        head: Head,
        temperature: float,
        kernels: Any,
        chunk: int,
        keeps_logits: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.kept = []
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        chosen, totals, entropy = hidden.new_zeros(3, len(hidden), dtype=dtype).unbind()
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            if kernels is not None:
                raw = F.linear(hidden[rows], weight, bias)
                chosen[rows], totals[rows], entropy[rows] = kernels.log_probs(
                    raw, targets[rows], head.scale / temperature
                )
                if keeps_logits:
                    ctx.kept.append(raw)
                continue
            logits = head.logits(hidden[rows], temperature)
            totals[rows] = logits.logsumexp(1)
            chosen[rows] = logits.gather(1, targets[rows, None]).squeeze(1) - totals[rows]
            log_probs = _log_probs_(logits, totals[rows])
            entropy[rows] = -(log_probs.exp().mul_(log_probs)).sum(1)
        ctx.save_for_backward(hidden, weight, bias, targets, totals, entropy)
        ctx.settings = (head.scale, head.softcap, temperature, chunk)
        ctx.kernels = kernels
        # An entropy that is only logged has no gradient, and then costs none.
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_chosen: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, totals, entropy = ctx.saved_tensors
        scale, softcap, temperature, chunk = ctx.settings
        factor = scale / temperature
        grad_chosen = torch.zeros_like(totals) if grad_chosen is None else grad_chosen
        head = Head(weight, bias, scale, softcap)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        make_weight = torch.empty_like if len(hidden) else torch.zeros_like
        grad_weight = make_weight(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if wants_bias else None
        kept, ctx.kept = ctx.kept[::-1], []  # overwritten below, so a second backward has none
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            to_chosen = grad_chosen[rows]
            to_entropy = None if grad_entropy is None else grad_entropy[rows]
            if ctx.kernels is not None:
                # The logits, which the kernel replaces by their gradients.
                grads = kept.pop() if kept else F.linear(hidden[rows], weight, bias)
                ctx.kernels.log_probs_backward_(
                    grads, targets[rows], totals[rows], entropy[rows], to_chosen, to_entropy, factor
                )
            else:
                logits = head.logits(hidden[rows], temperature)
                if softcap is not None:  # 1 − tanh², from the logits
                    bounded = logits * (temperature / (scale * softcap))
                    slope_of_softcap = bounded.square_().neg_().add_(1.0)
                log_probs = _log_probs_(logits, totals[rows])
                slopes = to_chosen[:, None].neg()
                if to_entropy is not None:
                    # dH/dz = −p (log p + H)
                    share = to_entropy[:, None]
                    slopes = torch.addcmul(slopes - share * entropy[rows, None], log_probs, -share)
                grads = log_probs.exp_().mul_(slopes)
                grads.scatter_add_(1, targets[rows, None], to_chosen[:, None])
                if softcap is not None:
                    grads.mul_(slope_of_softcap)
                grads = (grads if factor == 1.0 else grads.mul_(factor)).to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(grads, weight, out=grad_hidden[rows])
            if grad_weight is not None:
                # With a `beta` of 0, what is in the empty tensor has no effect, not even a NaN.
                grad_weight.addmm_(grads.T, hidden[rows], beta=int(start > 0))
            if grad_bias is not None:
                grad_bias += grads.sum(0)
            del grads  # before the next chunk
        return grad_hidden, grad_weight, grad_bias, *[None] * 6


def _kernels_for(head: Head, hidden: torch.Tensor) -> Any:
    """Return the module of the kernels, or None where torch computes."""
    if not hidden.is_cuda or head.softcap is not None or hidden.dtype == torch.float64:
        return None
    return load_kernels("kernels")


def _log_probs_(logits: torch.Tensor, totals: torch.Tensor) -> torch.Tensor:
    """log p, in place; −∞ becomes a finite number, so that p log p is 0 there and not NaN."""
    return logits.sub_(totals[:, None]).clamp_(min=-1e30)
