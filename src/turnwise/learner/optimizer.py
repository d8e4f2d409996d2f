"""The optimiser: float32 masters, any torch optimiser on them, and weights rounded from them.

Steps of 1e-6 are lost in bf16. So each bf16 or fp16 parameter has a float32 master: gradients are
accumulated there, the optimiser steps there, and the module gets the result, rounded by a threshold
of each weight's own (`models.rounding`), so that small steps reach it at once. Parameters that are
float32 already are their own masters. They are only written in place: an engine on the same modules
may hold views of them. The masters of a sharded model are the shards of this process.

Offloaded, the masters and the optimiser's state are in the memory of the CPU, which makes the step.

On a GPU a kernel makes the steps of AdamW for parameters in half precision: torch's AdamW has their
state.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from turnwise.algo.choose import check_options, look_up
from turnwise.errors import ConfigError
from turnwise.learner.fast import load_kernels
from turnwise.learner.sharding import as_shard, first_element, local_rows, local_shard
from turnwise.models.rounding import HALF, round_weight, threshold_key

if TYPE_CHECKING:  # needs Triton
    from turnwise.learner.fast.adam_kernels import KernelAdamW

_CHUNK = 1 << 28
"""Gradients that are in the memory of the CPU at a time, where the masters are offloaded."""
_NOT_HIDDEN = ("embed", "wte", "wpe", "head")
"""In the names of matrices that Muon leaves to AdamW: embeddings and heads."""


@dataclass(eq=False)
class MasterWeight:
    """A trained parameter, and the master that an optimiser steps.

    Of a sharded model both are the shards of this process; `whole` and `part` lead from shards to
    the whole tensor and back.
    """

    name: str
    parameter: nn.Parameter
    """As the module computes with it."""
    master: nn.Parameter
    """In float32 at least; the parameter itself where it can be."""
    key: int | None
    """Of the thresholds that the master is rounded by; None: the parameter is not in half
    precision."""
    keeps_narrow: bool = False
    """Whether a gradient that comes alone stays in its precision."""
    gradient: torch.Tensor | None = None
    """The sum of the gradients since the last step."""

    @property
    def weight(self) -> torch.Tensor:
        """What the module has of the parameter in this process."""
        return local_shard(self.parameter.detach())

    def add_gradient(self, parameter: torch.Tensor) -> None:
        """Take the gradient from the parameter, where a backward has left it."""
        assert parameter.grad is not None
        gradient = local_shard(parameter.grad)
        if self.gradient is None:
            self.gradient = gradient if self.keeps_narrow else gradient.to(self.master.dtype)
        else:
            self.gradient = self.gradient.to(self.master.dtype).add_(gradient)
        parameter.grad = None

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the master as the module gets them."""
        if self.key is None:
            return values.detach()
        weight = self.weight
        first = first_element(self.parameter)
        return round_weight(
            values.detach(), weight.dtype, self.key, first=first, device=weight.device
        )

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """Return the whole tensor of which the processes have these shards.

        A collective: all processes must call it together.
        """
        tensor = as_shard(values, self.parameter)
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def part(self, values: torch.Tensor) -> torch.Tensor:
        """Return this process's shard of a whole tensor."""
        first, last = local_rows(self.parameter)
        return values[first:last]


MakeOptimizer: TypeAlias = Callable[..., Optimizer | Sequence[Optimizer]]
"""Takes a list of `MasterWeight` and, by name, `weight_decay`, `betas`, `epsilon` and what
`training.optimizer_options` has; returns torch optimisers over the masters. The learning rate of a
group is the run's, times its `lr_scale` if it has one."""


def adamw(
    weights: Sequence[MasterWeight],
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.95),
    epsilon: float = 1e-8,
) -> Optimizer:
    """AdamW; norms and biases have no weight decay."""
    matrices = [w.master for w in weights if w.master.dim() > 1]
    vectors = [w.master for w in weights if w.master.dim() <= 1]
    return AdamW(
        [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=betas,
        eps=epsilon,
        fused=True,
    )


class Muon(Optimizer):
    """Momentum whose update of a matrix is made orthogonal (Jordan et al., 2024).

    Updates are scaled to the size of AdamW's (Liu et al., 2025), so that learning rate and weight
    decay mean the same for both.
    """

    def __init__(
        self, weights: Sequence[MasterWeight], weight_decay: float, momentum: float
    ) -> None:
        defaults = {"lr": 0.0, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([w.master for w in weights], defaults)
        self._weights = {w.master: w for w in weights}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # ours give none
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for master in group["params"]:
                if master.grad is None:
                    continue
                state, weight = self.state[master], self._weights[master]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(master)
                buffer = state["momentum_buffer"].lerp_(master.grad, 1.0 - momentum)
                update = weight.whole(master.grad.lerp(buffer, momentum))  # Nesterov's
                scale = 0.2 * math.sqrt(max(update.shape))
                master.mul_(1.0 - rate * group["weight_decay"])
                master.add_(weight.part(orthogonal(update)), alpha=-rate * scale)


def orthogonal(matrix: torch.Tensor, num_iterations: int = 5) -> torch.Tensor:
    """Return about the nearest matrix with orthogonal rows or columns, by Newton and Schulz.

    The coefficients raise small singular values fast; all end between 0.7 and 1.2.
    """
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    if is_tall := x.shape[0] > x.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(num_iterations):
        gram = x @ x.T
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    result: torch.Tensor = (x.T if is_tall else x).to(matrix.dtype)
    return result


def muon(
    weights: Sequence[MasterWeight],
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.95),
    epsilon: float = 1e-8,
    momentum: float = 0.95,
) -> Sequence[Optimizer]:
    """Muon for hidden matrices, AdamW for all else: embeddings, heads, norms and biases."""
    hidden = [
        weight
        for weight in weights
        if weight.master.dim() == 2 and not any(part in weight.name for part in _NOT_HIDDEN)
    ]
    others = [weight for weight in weights if weight not in hidden]
    made: list[Optimizer] = [Muon(hidden, weight_decay, momentum)] if hidden else []
    if others:
        made.append(adamw(others, weight_decay=weight_decay, betas=betas, epsilon=epsilon))
    return made


OPTIMIZERS: dict[str, MakeOptimizer] = {"adamw": adamw, "muon": muon}


def get_optimizer(
    choice: MakeOptimizer | str, options: Mapping[str, Any] | None = None
) -> MakeOptimizer:
    """Return the function that makes an optimiser: a name, `file.py:function`, or the function.

    An option that it does not take is an error.
    """
    make: MakeOptimizer = look_up("optimizer", choice, OPTIMIZERS)
    _, *parameters = inspect.signature(make).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = [parameter.name for parameter in parameters]
        check_options(f"the optimizer {choice!r}", options or {}, names)
    return make


class MasterOptimizer:
    """Steps named parameters by their masters.

    `first_masters` read the float32 values that parameters, or shards of them, were rounded from.
    `options` are those of the optimiser.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        make: MakeOptimizer | str = "adamw",
        *,
        offload: bool = False,
        first_masters: Mapping[str, Callable[[], torch.Tensor]] | None = None,
        **options: Any,
    ) -> None:
        trained = {name: p for name, p in parameters if p.requires_grad}
        if not trained:
            raise ConfigError("there is nothing to train: no parameter requires a gradient")
        self._is_offloaded = offload
        self._weights: list[MasterWeight] = []
        for name, parameter in trained.items():
            shard = local_shard(parameter.detach())
            weight = MasterWeight(name, parameter, parameter, None)
            values = shard
            if shard.dtype in HALF:
                weight.key = threshold_key(name)
                values = shard.float()
                if first_masters and name in first_masters:
                    first = first_masters[name]().to(shard.device)
                    # A weight that was changed since it was read is another one.
                    values = torch.where(weight.rounded(first) == shard, first, values)
            if offload:
                weight.master = nn.Parameter(values.to("cpu", copy=values is shard))
            elif values is not shard or isinstance(parameter, DTensor):
                weight.master = nn.Parameter(values)
            self._weights.append(weight)
            hook = parameter.register_post_accumulate_grad_hook(weight.add_gradient)  # type: ignore[no-untyped-call]
            # The parameters outlive this optimiser, and may get another one.
            weakref.finalize(self, hook.remove)
        made = get_optimizer(make, options)(self._weights, **options)
        self._optimizers = [made] if isinstance(made, Optimizer) else list(made)
        self._kernels = None if offload else _kernel_adamw(self._optimizers, self._weights)

    @property
    def num_half(self) -> int:
        """The number of trained weights in half precision; of a sharded model, in this process."""
        return sum(w.master.numel() for w in self._weights if w.key is not None)

    @property
    def bytes_to_come(self) -> int:
        """The memory of the device that the first step takes: for gradients and moments."""
        fresh = [w.master for w in self._weights if not self._state(w)]
        return (1 if self._is_offloaded else 3) * sum(m.numel() * m.element_size() for m in fresh)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the parameters that have one."""
        return [weight.gradient for weight in self._weights if weight.gradient is not None]

    def zero_grad(self) -> None:
        if self._kernels is not None:
            self._kernels.prepared = None
        for weight in self._weights:
            weight.gradient = weight.parameter.grad = weight.master.grad = None

    @torch.no_grad()
    def gradient_norm(self) -> torch.Tensor:
        """Return the norm of all gradients together; not finite if one of them is not."""
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for gradient in self.gradients():
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        norms = []
        for dtype, gradients in by_dtype.items():
            wide = torch.promote_types(dtype, torch.float32)
            norms.append(torch.stack(torch._foreach_norm(gradients, dtype=wide)).double())
        total: torch.Tensor = torch.linalg.vector_norm(torch.cat(norms))
        return total

    def prepare_step(self, learning_rate: float) -> None:
        """Collect what kernels read in the next step, while the device may still compute."""
        if self._kernels is not None:
            self._kernels.prepare(learning_rate)

    @torch.no_grad()
    def step(self, learning_rate: float, gradient_scale: float = 1.0) -> torch.Tensor:
        """Make one step on the gradients, multiplied by a scale.

        Returns how many of the weights in half precision it moved, of `num_half`.
        """
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * group.get("lr_scale", 1.0)
        counts = []
        if self._kernels is not None:
            counts.append(self._kernels.step(learning_rate, gradient_scale))
        if gradient_scale != 1.0 and (gradients := self.gradients()):
            torch._foreach_mul_(gradients, gradient_scale)
        for weights in self._chunks():
            is_copied = False
            for weight in weights:
                gradient = weight.gradient
                assert gradient is not None
                if self._is_offloaded and gradient.is_cuda:
                    pinned = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=True)
                    gradient = pinned.copy_(gradient, non_blocking=True)
                    is_copied = True
                weight.master.grad = gradient.to(weight.master.dtype)
            if is_copied:
                torch.cuda.synchronize()
            for optimizer in self._optimizers:
                optimizer.step()
            num_moved = torch.zeros((), dtype=torch.int64)
            for weight in weights:
                weight.master.grad = None
                if weight.master is not weight.parameter:
                    before, after = weight.weight, weight.rounded(weight.master)
                    if weight.key is not None:
                        num_moved = num_moved.to(before.device) + (after != before).sum()
                    before.copy_(after)
            counts.append(num_moved)
        return torch.stack([count.to(counts[0].device) for count in counts]).sum()

    def _chunks(self) -> Iterator[list[MasterWeight]]:
        """Yield the weights with a gradient; offloaded, so that the gradients at a time are few."""
        weights: list[MasterWeight] = []
        size = 0
        for weight in [weight for weight in self._weights if weight.gradient is not None]:
            if weights and self._is_offloaded and size + weight.master.numel() > _CHUNK:
                yield weights
                weights, size = [], 0
            weights.append(weight)
            size += weight.master.numel()
        yield weights

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Copy weights that were loaded into the modules to their masters."""
        for weight in self._weights:
            weight.master.copy_(weight.weight)

    def forget(self) -> None:
        """Clear the optimiser's state; the weights stay."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def _state(self, weight: MasterWeight) -> dict[str, Any]:
        states = (optimizer.state.get(weight.master) for optimizer in self._optimizers)
        return next((state for state in states if state), {})

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return all that a resumed run needs, by names that fit into one safetensors file."""
        masters = {
            f"master.{w.name}": w.master.detach() for w in self._weights if w.key is not None
        }
        return masters | {
            f"{key}.{weight.name}": torch.as_tensor(value)
            for weight in self._weights
            for key, value in self._state(weight).items()
        }

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        weights = {weight.name: weight for weight in self._weights}
        states: dict[nn.Parameter, dict[str, torch.Tensor]] = {
            weight.master: {} for weight in self._weights
        }
        halves = [weight for weight in self._weights if weight.key is not None]
        wrong = {f"master.{weight.name}" for weight in halves} - set(tensors)
        for tensor_name, value in tensors.items():
            key, _, name = tensor_name.partition(".")
            if name in weights and value.shape in (weights[name].master.shape, ()):
                states[weights[name].master][key] = value.clone()
            else:
                wrong.add(tensor_name)
        if wrong:
            raise ConfigError(
                f"this optimiser state belongs to another model: {min(wrong)} does not match"
            )
        for weight in halves:
            weight.master.copy_(states[weight.master].pop("master"))
        for optimizer in self._optimizers:
            # Torch knows which values belong on which device.
            masters = [master for group in optimizer.param_groups for master in group["params"]]
            state = {i: states[master] for i, master in enumerate(masters) if states[master]}
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self._kernels is not None:
            self._kernels.after_loading()


def _kernel_adamw(
    optimizers: Sequence[Optimizer], weights: Sequence[MasterWeight]
) -> KernelAdamW | None:
    """Return the kernel that makes the steps of AdamW for the weights in half precision, if any."""
    by_master = {weight.master: weight for weight in weights if weight.key is not None}
    steps = [
        (by_master[master], optimizer, group)
        for optimizer in optimizers
        if type(optimizer) is AdamW
        for group in optimizer.param_groups
        for master in group["params"]
        if master in by_master and not (group["amsgrad"] or group["maximize"])
    ]
    kernels = _kernels_for([weight.weight for weight, _, _ in steps])
    return None if kernels is None else kernels.KernelAdamW(steps)


def _kernels_for(shards: Sequence[torch.Tensor]) -> Any:
    """Return the module of the kernel, or None where torch makes the steps."""
    if not shards or not all(shard.is_cuda and shard.is_contiguous() for shard in shards):
        return None
    return load_kernels("adam_kernels")
