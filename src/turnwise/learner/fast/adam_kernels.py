"""A step of AdamW for weights in half precision, as one kernel and one pass over memory.

Torch scales the gradient, steps in float32 and rounds to the module in passes of their own, and
needs the gradient in float32. Weights are rounded bit by bit as `models.rounding` does. Imported on
a GPU only. Triton interprets annotations, so the kernel's arguments have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch.optim import AdamW

from turnwise.learner.sharding import first_element
from turnwise.models.rounding_kernels import rounded

_SIZE = 4096
"""Numbers that a program computes."""
_COLUMNS = 7
"""Of the table of a parameter: the addresses of its tensors, its key, its first index."""
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit  # type: ignore[untyped-decorator]
def _step_block(  # type: ignore[no-untyped-def]
    weight, master, gradient, mean, mean_square, index, key, inside, scale, decay, rate, root,
    beta1, beta2, epsilon, is_whole: tl.constexpr,
):  # fmt: skip
    if is_whole:  # without a mask, several numbers are loaded at once
        g = tl.load(gradient).to(tl.float32) * scale
        w, m, v = tl.load(master), tl.load(mean), tl.load(mean_square)
        before = tl.load(weight)
    else:
        before = tl.load(weight, mask=inside, other=0.0)
        g = tl.load(gradient, mask=inside, other=0.0).to(tl.float32) * scale
        w = tl.load(master, mask=inside, other=0.0)
        m = tl.load(mean, mask=inside, other=0.0)
        v = tl.load(mean_square, mask=inside, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w = w * decay - rate * m / (tl.sqrt(v) / root + epsilon)
    new = rounded(w, index, key, weight.dtype.element_ty)
    if is_whole:
        tl.store(mean, m)
        tl.store(mean_square, v)
        tl.store(master, w)
        tl.store(weight, new)
    else:
        tl.store(mean, m, mask=inside)
        tl.store(mean_square, v, mask=inside)
        tl.store(master, w, mask=inside)
        tl.store(weight, new, mask=inside)
    return tl.sum(((new != before) & inside).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def _step_kernel(  # type: ignore[no-untyped-def]
    pointers, rates, sizes, starts, owners, moved, scale, beta1, beta2, epsilon,
    weight_type: tl.constexpr, gradient_type: tl.constexpr, is_aligned: tl.constexpr,
    size: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    row = pointers + owner * columns
    weight = tl.load(row).to(tl.pointer_type(weight_type))
    master = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    gradient = tl.load(row + 2).to(tl.pointer_type(gradient_type))
    mean = tl.load(row + 3).to(tl.pointer_type(tl.float32))
    mean_square = tl.load(row + 4).to(tl.pointer_type(tl.float32))
    key, first_index = tl.load(row + 5), tl.load(row + 6)
    if is_aligned:
        weight, master = tl.multiple_of(weight, 16), tl.multiple_of(master, 16)
        gradient, mean = tl.multiple_of(gradient, 16), tl.multiple_of(mean, 16)
        mean_square = tl.multiple_of(mean_square, 16)
    decay = tl.load(rates + owner * 3)
    rate = tl.load(rates + owner * 3 + 1)
    root = tl.load(rates + owner * 3 + 2)
    number = tl.load(sizes + owner)
    first = (program - tl.load(starts + owner)).to(tl.int64) * size
    at = first + tl.arange(0, size)
    if first + size <= number:
        count = _step_block(
            weight + at, master + at, gradient + at, mean + at, mean_square + at,
            first_index + at, key, at < number,
            scale, decay, rate, root, beta1, beta2, epsilon, True,
        )  # fmt: skip
    else:
        count = _step_block(
            weight + at, master + at, gradient + at, mean + at, mean_square + at,
            first_index + at, key, at < number,
            scale, decay, rate, root, beta1, beta2, epsilon, False,
        )  # fmt: skip
    tl.store(moved + program, count)


@lru_cache(maxsize=8)
def _programs(sizes: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return the sizes, the first program of each parameter, and the parameter of each program."""
    counts = torch.tensor([triton.cdiv(size, _SIZE) for size in sizes])
    owners = torch.arange(len(sizes)).repeat_interleave(counts)
    tables = (torch.tensor(sizes), (counts.cumsum(0) - counts).int(), owners.int())
    return tuple(table.to(device) for table in tables)


@dataclass(frozen=True)
class _Launch:
    """Parameters of one precision and one group of settings, as the kernel reads them."""

    tensors: list[tuple[torch.Tensor, ...]]
    """Weight, master, gradient and moments of each; kept alive, since the table has addresses."""
    table: torch.Tensor
    rates: torch.Tensor
    is_aligned: bool
    betas: tuple[float, float]
    epsilon: float


class KernelAdamW:
    """The steps of torch's AdamW, and their rounding, for weights in half precision.

    Their gradients may be narrow too. The state is torch's: the moments, and the number of a step,
    which is on the CPU for it.
    """

    def __init__(self, steps: Sequence[tuple[Any, AdamW, dict[str, Any]]]) -> None:
        self._steps = steps
        """The `MasterWeight`s, each with its optimiser and group."""
        self.prepared: tuple[float, list[_Launch]] | None = None
        """The learning rate, and what the kernel computes, once all gradients are there."""
        for weight, _, _ in steps:
            weight.keeps_narrow = True

    def prepare(self, learning_rate: float) -> None:
        """Collect what the kernel reads, without waiting for the device."""
        kinds: dict[Any, list[tuple[Any, ...]]] = {}
        for weight, optimizer, group in self._steps:
            if weight.gradient is None:
                continue
            master, state = weight.master, optimizer.state[weight.master]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)
            gradient = weight.gradient.contiguous()
            tensors = (weight.weight, master, gradient, state["exp_avg"], state["exp_avg_sq"])
            number = int(state["step"]) + 1
            rate = learning_rate * group.get("lr_scale", 1.0)
            rates = (
                1.0 - rate * group["weight_decay"],
                rate / (1.0 - group["betas"][0] ** number),
                math.sqrt(1.0 - group["betas"][1] ** number),
            )
            row = [*(x.data_ptr() for x in tensors), weight.key, first_element(weight.parameter)]
            kind = (tensors[0].dtype, gradient.dtype, tuple(group["betas"]), group["eps"])
            kinds.setdefault(kind, []).append((tensors, row, rates))
        launches = []
        for (*_, betas, epsilon), items in kinds.items():
            kept, rows, numbers = (list(column) for column in zip(*items, strict=True))
            table = torch.tensor(rows)
            device = kept[0][0].device
            launches.append(
                _Launch(
                    kept,
                    table.to(device, non_blocking=True),
                    torch.tensor(numbers, dtype=torch.float32).to(device, non_blocking=True),
                    is_aligned=bool((table[:, :5] % 16 == 0).all()),
                    betas=betas,
                    epsilon=epsilon,
                )
            )
        self.prepared = learning_rate, launches

    def step(self, learning_rate: float, gradient_scale: float) -> torch.Tensor:
        """Make the steps; return how many weights moved. Frees their gradients."""
        if self.prepared is None or self.prepared[0] != learning_rate:
            self.prepare(learning_rate)
        assert self.prepared is not None
        counts = [torch.zeros((), dtype=torch.int64)]
        for launch in self.prepared[1]:
            weight, _, gradient, *_ = launch.tensors[0]
            lengths = tuple(tensors[0].numel() for tensors in launch.tensors)
            sizes, starts, owners = _programs(lengths, weight.device)
            if not len(owners):  # shards of nothing
                continue
            moved = torch.empty(len(owners), dtype=torch.int32, device=owners.device)
            _step_kernel[(len(owners),)](
                launch.table, launch.rates, sizes, starts, owners, moved, gradient_scale,
                *launch.betas, launch.epsilon, _TYPES[weight.dtype], _TYPES[gradient.dtype],
                launch.is_aligned, _SIZE, _COLUMNS, num_warps=8,
            )  # fmt: skip
            counts.append(moved.sum())
        self.prepared = None
        for weight, optimizer, _ in self._steps:
            if weight.gradient is not None:
                optimizer.state[weight.master]["step"] += 1
                weight.gradient = None
        return torch.stack([count.to(counts[-1].device) for count in counts]).sum()

    def after_loading(self) -> None:
        for weight, optimizer, _ in self._steps:
            state = optimizer.state.get(weight.master)
            if state:
                state["step"] = state["step"].cpu()
