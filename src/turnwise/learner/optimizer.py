"""AdamW that half-precision modules can be trained with, and its learning rate over time.

Steps of 1e-6 are lost in bf16. So each bf16 or fp16 parameter has a float32 master: gradients are
accumulated there, Adam steps there, and the module gets the result, rounded by a threshold of each
weight's own (`models.rounding`), so that small steps reach it at once. Parameters that are
float32 already are their own masters. They are only written in place: an engine on the same modules
may hold views of them. The masters of a sharded model are the shards of this process.

Offloaded, the masters and the moments of Adam are in the memory of the CPU, which makes the step.

On a GPU a kernel steps the masters of parameters in half precision: torch's AdamW has their state.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from turnwise.errors import ConfigError
from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.sharding import first_element, is_sharded, local_shard
from turnwise.models.rounding import HALF, round_weight, threshold_key

LearningRateSchedule: TypeAlias = Literal["constant", "linear", "cosine"]

_STATE = ("exp_avg", "exp_avg_sq", "step")
_CHUNK = 1 << 28
"""Gradients that are in the memory of the CPU at a time, where the masters are offloaded."""


def learning_rate_at(
    step: int,
    base: float,
    *,
    schedule: LearningRateSchedule = "constant",
    warmup_steps: int = 0,
    total_steps: int | None = None,
) -> float:
    """Return the learning rate of a step, from 0: linear warmup, then constant or decaying to 0.

    >>> [learning_rate_at(s, 1.0, schedule="linear", warmup_steps=2, total_steps=6)
    ...  for s in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    if total_steps is None:
        raise ConfigError(
            f"lr_schedule={schedule!r} needs the number of steps in all. Give "
            "total_steps, or take lr_schedule='constant'."
        )
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    left = 1.0 - min(1.0, done)
    return base * (left if schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left)))


class MasterAdamW:
    """AdamW over named parameters, with float32 masters of those in half precision.

    `first_masters` read the float32 values that parameters, or shards of them, were rounded from.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        weight_decay: float = 0.0,
        # The usual 0.999 takes a thousand steps to notice that gradients have grown.
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
        offload: bool = False,
        first_masters: Mapping[str, Callable[[], torch.Tensor]] | None = None,
    ) -> None:
        self._parameters = {name: p for name, p in parameters if p.requires_grad}
        if not self._parameters:
            raise ConfigError("there is nothing to train: no parameter requires a gradient")
        self._masters: dict[str, nn.Parameter] = {}
        self._sums: dict[str, nn.Parameter | _GradientSum] = {}
        """Where the gradients are summed: in the masters, or for kernels and offloaded masters."""
        self._is_offloaded = offload
        halves = [p for p in self._parameters.values() if _is_half(p)]
        self._kernels = None if offload else _kernels_for(halves)
        """The kernels that step the parameters in half precision, where they can."""
        self._prepared: tuple[float, Any] | None = None
        """The learning rate and what the kernels step, once all gradients are there."""
        self._half: list[str] = []
        self._keys: dict[str, int] = {}
        """Of the thresholds that masters are rounded by, like the index of a shard's first element
        in `_firsts`."""
        self._firsts: dict[str, int] = {}
        hooks: list[Any] = []
        for name, parameter in self._parameters.items():
            shard = local_shard(parameter.detach())
            is_half = _is_half(parameter)
            if is_half:
                self._half.append(name)
                self._keys[name] = threshold_key(name)
                self._firsts[name] = first_element(parameter)
                shard = self._first_master(name, shard, (first_masters or {}).get(name))
            if is_half and self._kernels is not None:
                self._masters[name] = nn.Parameter(shard)
                # A gradient alone stays as it is: the kernel reads any precision.
                self._sums[name] = _GradientSum(shard.dtype, may_be_narrow=True)
            elif offload:
                self._masters[name] = nn.Parameter(shard.to("cpu", copy=True))
                self._sums[name] = _GradientSum(shard.dtype)
            elif is_half or is_sharded(parameter):
                self._masters[name] = self._sums[name] = nn.Parameter(shard)
            else:
                self._masters[name] = self._sums[name] = parameter
            if self._sums[name] is not parameter:
                hooks.append(_on_gradient(parameter, _adder(self._sums[name])))
        # The parameters outlive this optimiser, and may get another one.
        weakref.finalize(self, _remove, hooks)
        # Norms and biases have no weight decay.
        matrices = [m for m in self._masters.values() if m.dim() > 1]
        vectors = [m for m in self._masters.values() if m.dim() <= 1]
        self._adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            betas=betas,
            eps=epsilon,
            fused=True,
        )

    @property
    def names(self) -> list[str]:
        """The names of the trained parameters."""
        return list(self._parameters)

    @property
    def num_half(self) -> int:
        """The number of trained weights in half precision; of a sharded model, in this process."""
        return sum(self._masters[name].numel() for name in self._half)

    @property
    def bytes_to_come(self) -> int:
        """The memory of the device that the first step takes: for gradients and moments."""
        masters = self._masters.values()
        sizes = (m.numel() * m.element_size() for m in masters if m not in self._adam.state)
        return (1 if self._is_offloaded else 3) * sum(sizes)

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the parameters that have one."""
        return [total.grad for total in self._sums.values() if total.grad is not None]

    def zero_grad(self) -> None:
        self._prepared = None
        for parameter in self._parameters.values():
            parameter.grad = None
        for total in self._sums.values():
            total.grad = None

    @torch.no_grad()
    def all_reduce_gradients(self, all_reduce: Callable[[Sequence[torch.Tensor]], None]) -> None:
        """Sum the gradients over the workers; one that a worker does not have counts as 0."""
        device = next(iter(self._parameters.values())).device
        has_one = [total.grad is not None for total in self._sums.values()]
        numbers = torch.tensor(has_one, device=device).double()
        all_reduce([numbers])
        for (name, total), number in zip(self._sums.items(), numbers.tolist(), strict=True):
            if number and total.grad is None:
                shard = local_shard(self._parameters[name].detach())
                total.grad = torch.zeros_like(shard, dtype=total.dtype)
            elif total.grad is not None:
                total.grad = total.grad.to(total.dtype)
        all_reduce(self.gradients())

    @torch.no_grad()
    def gradient_norm(self) -> torch.Tensor:
        """Return the norm of all gradients together; not finite if one of them is not."""
        norms = []
        for dtype, gradients in _by_dtype(self.gradients()).items():
            wide = torch.promote_types(dtype, torch.float32)
            norms.append(torch.stack(torch._foreach_norm(gradients, dtype=wide)).double())
        total: torch.Tensor = torch.linalg.vector_norm(torch.cat(norms))
        return total

    @torch.no_grad()
    def step(self, learning_rate: float, gradient_scale: float = 1.0) -> torch.Tensor:
        """Make one step of AdamW on the gradients, multiplied by a scale.

        Returns how many of the weights in half precision it moved, of `num_half`.
        """
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        if self._kernels is not None:
            num_moved = self._step_by_kernels(learning_rate, gradient_scale)
        if gradient_scale != 1.0 and (others := self.gradients()):
            torch._foreach_mul_(others, gradient_scale)
        if not self._is_offloaded:
            self._adam.step()
            return num_moved if self._kernels is not None else self._copy_to_modules(self._half)
        counts = []
        for names in self._chunks():
            self._fetch_gradients(names)
            self._adam.step()
            self._adam.zero_grad()
            counts.append(self._copy_to_modules(names))
        return torch.stack([count.to(counts[0].device) for count in counts]).sum()

    def prepare_step(self, learning_rate: float) -> None:
        """Collect what kernels read in the next step, while the device may still compute."""
        if self._kernels is None:
            return
        steps = []
        groups = self._adam.param_groups
        decays = {master: group["weight_decay"] for group in groups for master in group["params"]}
        for name in self._half:
            master, gradient = self._masters[name], self._sums[name].grad
            if gradient is None:
                continue
            state = self._adam.state[master]
            if not state:
                state["step"] = torch.tensor(0.0)  # on the CPU, which computes with it
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)
            weight = local_shard(self._parameters[name].detach())
            steps.append(
                self._kernels.Step(
                    weight=weight,
                    master=master,
                    gradient=gradient.contiguous(),
                    mean=state["exp_avg"],
                    mean_square=state["exp_avg_sq"],
                    number=int(state["step"]) + 1,
                    weight_decay=decays[master],
                    key=self._keys[name],
                    first=self._firsts[name],
                )
            )
        prepared = self._kernels.prepare(
            steps, learning_rate=learning_rate, betas=groups[0]["betas"]
        )
        self._prepared = learning_rate, prepared

    def _step_by_kernels(self, learning_rate: float, gradient_scale: float) -> torch.Tensor:
        """Step the parameters in half precision; return how many moved. Frees their gradients."""
        assert self._kernels is not None
        if self._prepared is None or self._prepared[0] != learning_rate:
            self.prepare_step(learning_rate)
        assert self._prepared is not None
        group = self._adam.param_groups[0]
        num_moved: torch.Tensor = self._kernels.step_(
            self._prepared[1], scale=gradient_scale, betas=group["betas"], epsilon=group["eps"]
        )
        self._prepared = None
        for name in self._half:
            if self._sums[name].grad is not None:
                self._adam.state[self._masters[name]]["step"] += 1
                self._sums[name].grad = None
        return num_moved

    def _chunks(self) -> Iterator[list[str]]:
        """Yield the names of the parameters, so that the gradients of each chunk are few."""
        names: list[str] = []
        size = 0
        for name, master in self._masters.items():
            if names and size + master.numel() > _CHUNK:
                yield names
                names, size = [], 0
            names.append(name)
            size += master.numel()
        yield names

    def _fetch_gradients(self, names: Sequence[str]) -> None:
        """Copy the gradients to the offloaded masters."""
        is_cuda = False
        for name in names:
            gradient = self._sums[name].grad
            if gradient is not None:
                is_cuda = gradient.is_cuda
                kept = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=is_cuda)
                self._masters[name].grad = kept.copy_(gradient, non_blocking=True)
        if is_cuda:
            torch.cuda.synchronize()

    def _copy_to_modules(self, names: Iterable[str]) -> torch.Tensor:
        """Round the masters to the modules; return how many weights in half precision moved."""
        num_moved = torch.zeros((), dtype=torch.int64)
        for name in names:
            weight = local_shard(self._parameters[name].detach())
            if name not in self._keys:  # offloaded, and in float32
                weight.copy_(self._masters[name])
                continue
            rounded = self._rounded(name, self._masters[name], weight)
            num_moved = num_moved.to(weight.device) + (rounded != weight).sum()
            weight.copy_(rounded)
        return num_moved

    def _rounded(self, name: str, master: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return round_weight(
            master.detach(),
            weight.dtype,
            self._keys[name],
            first=self._firsts[name],
            device=weight.device,
        )

    def _first_master(
        self, name: str, weight: torch.Tensor, read: Callable[[], torch.Tensor] | None
    ) -> torch.Tensor:
        """Return the value that a weight was rounded from where it is known, else the weight."""
        if read is None:
            return weight.float()
        values = read().to(weight.device)
        # A weight that was changed since it was read is another one.
        return torch.where(self._rounded(name, values, weight) == weight, values, weight.float())

    @property
    def _copied(self) -> list[str]:
        """The parameters whose masters are copies."""
        return list(self._masters) if self._is_offloaded else self._half

    @torch.no_grad()
    def refresh_masters(self) -> None:
        """Copy weights that were loaded into the modules to their masters."""
        for name in self._copied:
            self._masters[name].copy_(local_shard(self._parameters[name]))

    def forget(self) -> None:
        """Clear the moments of Adam; the weights stay."""
        self._adam.state.clear()

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return all that a resumed run needs, by names that fit into one safetensors file."""
        tensors = {f"master.{name}": self._masters[name].detach() for name in self._half}
        for name, master in self._masters.items():
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        expected = {f"master.{name}" for name in self._half}
        known = expected | {f"{key}.{name}" for key in _STATE for name in self._masters}
        if not expected <= set(tensors) <= known:
            wrong = sorted((expected - set(tensors)) | (set(tensors) - known))
            raise ConfigError(
                f"this optimiser state belongs to another model: {', '.join(wrong[:3])} "
                f"({len(wrong)} names do not match)"
            )
        for name in self._half:
            self._masters[name].copy_(tensors[f"master.{name}"])
        self._adam.state.clear()
        for name, master in self._masters.items():
            state: dict[str, Any] = {}
            for key in _STATE:
                value = tensors.get(f"{key}.{name}")
                if value is not None and key != "step" and value.shape != master.shape:
                    raise ConfigError(
                        f"this optimiser state belongs to another model: {key}.{name} has shape "
                        f"{tuple(value.shape)}, expected {tuple(master.shape)}"
                    )
                if value is not None:
                    dtype = torch.float32 if key == "step" else master.dtype
                    by_kernel = self._kernels is not None and name in self._half
                    is_on_cpu = key == "step" and by_kernel
                    device = torch.device("cpu") if is_on_cpu else master.device
                    state[key] = value.to(device, dtype, copy=True)
            if state:
                self._adam.state[master] = state


class _GradientSum:
    """The summed gradient of a parameter, where its master cannot have it.

    `may_be_narrow`: a gradient alone is not converted to `dtype`.
    """

    def __init__(self, dtype: torch.dtype, *, may_be_narrow: bool = False) -> None:
        self.dtype = dtype
        self.may_be_narrow = may_be_narrow
        self.grad: torch.Tensor | None = None


def _is_half(parameter: torch.Tensor) -> bool:
    return parameter.dtype in HALF


def _kernels_for(parameters: Sequence[torch.Tensor]) -> Any:
    """Return the module of the kernels, or None where torch makes the steps."""
    shards = [local_shard(parameter.detach()) for parameter in parameters]
    if not all(shard.is_cuda and shard.is_contiguous() for shard in shards):
        return None
    if not shards:
        return None
    return load_kernels("adam_kernels", shards[0].dtype, shards[0].device)


def _by_dtype(tensors: Iterable[torch.Tensor]) -> dict[torch.dtype, list[torch.Tensor]]:
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups


def _on_gradient(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _adder(total: nn.Parameter | _GradientSum) -> Callable[[torch.Tensor], None]:
    """Return a hook that adds a parameter's gradient to a sum, and frees it."""

    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradient = local_shard(parameter.grad)
        if total.grad is None:
            is_kept = isinstance(total, _GradientSum) and total.may_be_narrow
            total.grad = gradient if is_kept else gradient.to(total.dtype)
        else:
            total.grad = total.grad.to(total.dtype).add_(gradient)
        parameter.grad = None

    return add
