"""Rounding of float32 weights to half precision, by a threshold that is fixed for each weight.

Rounded to nearest, a weight stays where it is until its updates add up to half the distance to the
next number: in bfloat16, with a learning rate of 1e-6, for hundreds of steps. Here a weight moves
when the part that half precision cuts off exceeds a threshold of its own, so that an update of δ
moves the share δ / ulp of the weights, and nothing moves between updates. Numbers that half
precision has stay as they are.

A threshold is a hash of the parameter's name and the element's index: it takes no memory, and
learners, shards, engines, resumed runs and exported models round alike.
"""

import hashlib
from importlib.util import find_spec

import torch

HALF = (torch.bfloat16, torch.float16)
_CHUNK = 1 << 24
"""Elements that are rounded at a time: the hash takes several times their memory."""
_MULTIPLIERS = (0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32)
"""Of MurmurHash3's finalizer, as signed numbers."""
_HAS_KERNELS = find_spec("triton") is not None
FLOAT16_TINY = 2.0**-14
"""Below it, float16 has a fixed resolution."""


def threshold_key(name: str) -> int:
    """Return the number that stands for a parameter in the hash; it has 31 bits.

    A weight has the same name inside a learner, in a model, and under adapters.
    """
    name = name.removeprefix("policy.").removeprefix("critic.").replace(".base_layer.", ".")
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") >> 1


@torch.no_grad()
def round_weight(
    values: torch.Tensor,
    dtype: torch.dtype,
    key: int,
    *,
    first: int = 0,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return values in this precision, on `device` if given; only half precision needs rounding.

    `first` is the index, in the whole parameter, of the first element: a shard begins later.
    """
    device = device or values.device
    if dtype not in HALF or values.dtype != torch.float32:
        return values.to(device, dtype)
    rounded = torch.empty(values.shape, dtype=dtype, device=device)
    if values.is_cuda and device.type == "cuda" and _HAS_KERNELS:
        from turnwise.models.rounding_kernels import round_on_gpu

        round_on_gpu(values.contiguous(), rounded, key, first)
        return rounded
    flat, target = values.reshape(-1), rounded.view(-1)
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK].to(device)
        index = torch.arange(first + start, first + start + len(chunk), device=device)
        hashes = _hash(index.int(), key)
        if dtype == torch.bfloat16:
            # The upper half of a float32 is a bfloat16: adding a threshold carries into it.
            bits = chunk.view(torch.int32) + ((hashes >> 16) & 0xFFFF)
            cut = (bits & ~0xFFFF).view(torch.float32)
        else:
            # float16 has at least 13 bits less; its smallest numbers get there by an offset.
            size = chunk.abs()
            offset = torch.where(size < FLOAT16_TINY, FLOAT16_TINY, 0.0)
            bits = (size + offset).view(torch.int32) + ((hashes >> 19) & 0x1FFF)
            cut = ((bits & ~0x1FFF).view(torch.float32) - offset).copysign(chunk)
        target[start : start + _CHUNK] = cut.to(dtype)
    return rounded


@torch.no_grad()
def round_merged(
    weight: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    scale: float,
    key: int,
    *,
    first: int = 0,
) -> torch.Tensor:
    """Return W + scale · B A in the precision of W, rounded; summed in float32 at least.

    W and B may be the same rows of theirs, from element `first` of W on.
    """
    is_half = weight.dtype in HALF and low.dtype == high.dtype == weight.dtype
    if is_half and weight.is_cuda and _HAS_KERNELS:
        from turnwise.models.rounding_kernels import merge_on_gpu

        weight, low, high = weight.contiguous(), low.contiguous(), high.contiguous()
        rounded = torch.empty_like(weight)
        merge_on_gpu(weight, low, high, rounded, scale, key, first)
        return rounded
    wide = torch.promote_types(weight.dtype, torch.float32)
    merged = torch.addmm(weight.to(wide), high.to(wide), low.to(wide), alpha=scale)
    return round_weight(merged, weight.dtype, key, first=first)


def _hash(index: torch.Tensor, key: int) -> torch.Tensor:
    """Return 32 random bits for each int32 index."""
    # Shifts of signed numbers copy the sign, hence the masks.
    x = index ^ key
    x ^= (x >> 16) & 0xFFFF
    x *= _MULTIPLIERS[0]
    x ^= (x >> 13) & 0x7FFFF
    x *= _MULTIPLIERS[1]
    x ^= (x >> 16) & 0xFFFF
    return x
