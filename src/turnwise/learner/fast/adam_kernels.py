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

import torch
import triton
import triton.language as tl

from turnwise.models.rounding import round_weight
from turnwise.models.rounding_kernels import rounded

_SIZE = 4096
"""Numbers that a program computes."""
_COLUMNS = 7
"""Of the table of a parameter: the addresses of its tensors, its key, its first index."""
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True)
class Step:
    """Step `number`, from 1, of one parameter. The tensors are contiguous and of one shape."""

    weight: torch.Tensor
    """Where the new master is rounded to."""
    master: torch.Tensor
    """In float32, like the moments."""
    gradient: torch.Tensor
    mean: torch.Tensor
    mean_square: torch.Tensor
    number: int
    weight_decay: float
    key: int
    """Of the thresholds that the master is rounded by."""
    first: int = 0
    """The index of the first element in the whole parameter, of which this may be a shard."""


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
class PreparedSteps:
    """The steps of parameters of one precision, as the kernel reads them."""

    steps: Sequence[Step]
    """Keeps the tensors alive, of which the kernel gets the addresses."""
    pointers: torch.Tensor
    rates: torch.Tensor
    is_aligned: bool


def prepare(
    steps: Sequence[Step], *, learning_rate: float, betas: tuple[float, float]
) -> list[PreparedSteps]:
    """Return what `step_` takes, without waiting for the device."""
    kinds: dict[tuple[torch.dtype, torch.dtype], list[Step]] = {}
    for step in steps:
        kinds.setdefault((step.weight.dtype, step.gradient.dtype), []).append(step)
    found = []
    for of_one_kind in kinds.values():
        device = of_one_kind[0].master.device
        tensors = [(s.weight, s.master, s.gradient, s.mean, s.mean_square) for s in of_one_kind]
        addresses = [[x.data_ptr() for x in row] for row in tensors]
        pairs = zip(addresses, of_one_kind, strict=True)
        pointers = torch.tensor([[*row, s.key, s.first] for row, s in pairs])
        rates = [
            (
                1.0 - learning_rate * s.weight_decay,
                learning_rate / (1.0 - betas[0] ** s.number),
                math.sqrt(1.0 - betas[1] ** s.number),
            )
            for s in of_one_kind
        ]
        found.append(
            PreparedSteps(
                of_one_kind,
                pointers.to(device, non_blocking=True),
                torch.tensor(rates, dtype=torch.float32).to(device, non_blocking=True),
                bool((pointers[:, :5] % 16 == 0).all()),
            )
        )
    return found


def step_(
    prepared: Sequence[PreparedSteps], *, scale: float, betas: tuple[float, float], epsilon: float
) -> torch.Tensor:
    """Make the steps of some parameters, with gradients multiplied by `scale`.

    Returns how many weights moved.
    """
    counts = [torch.zeros((), dtype=torch.int64)]
    for kind in prepared:
        first = kind.steps[0]
        numbers = tuple(step.master.numel() for step in kind.steps)
        sizes, starts, owners = _programs(numbers, first.master.device)
        if not len(owners):  # shards of nothing
            continue
        moved = torch.empty(len(owners), dtype=torch.int32, device=owners.device)
        _step_kernel[(len(owners),)](
            kind.pointers, kind.rates, sizes, starts, owners, moved, scale, *betas, epsilon,
            _TYPES[first.weight.dtype], _TYPES[first.gradient.dtype], kind.is_aligned, _SIZE,
            _COLUMNS, num_warps=8,
        )  # fmt: skip
        counts.append(moved.sum())
    return torch.stack([count.to(counts[-1].device) for count in counts]).sum()


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether three steps of two parameters are those of torch, up to rounding of the
    masters, and whether the weights are the rounded masters."""
    generator = torch.Generator().manual_seed(0)
    sizes, first = (_SIZE + 7, 5), 3
    plain = [torch.nn.Parameter(torch.randn(n, generator=generator).to(device)) for n in sizes]
    masters = [p.detach().clone() for p in plain]
    weights = [master.to(dtype) for master in masters]
    moments = [torch.zeros(2, n, device=device) for n in sizes]
    adam = torch.optim.AdamW(plain, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95))
    for number in (1, 2, 3):
        slopes = [torch.randn(n, generator=generator).to(device, dtype) for n in sizes]
        for parameter, slope in zip(plain, slopes, strict=True):
            parameter.grad = slope.float() * 0.5
        adam.step()
        rows = enumerate(zip(weights, masters, slopes, moments, strict=True))
        steps = [
            Step(w, master, slope, m, v, number, 0.1, key, first)
            for key, (w, master, slope, (m, v)) in rows
        ]
        prepared = prepare(steps, learning_rate=1e-2, betas=(0.9, 0.95))
        step_(prepared, scale=0.5, betas=(0.9, 0.95), epsilon=1e-8)
    results = enumerate(zip(plain, masters, weights, strict=True))
    return all(
        torch.allclose(master, p.detach(), rtol=1e-5, atol=1e-6)
        and torch.equal(weight, round_weight(master, dtype, key, first=first))
        for key, (p, master, weight) in results
    )
