"""A model in parts: each of several processes keeps a share of every parameter (FSDP2).

A layer is gathered when it is computed and let go again; its gradients are added up on their way to
those who keep it. Parts are cut along the first dimension, so that whoever has all of them can put
them together without a process group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from turnwise.learner.model import PolicyValueModel


def shard(model: PolicyValueModel) -> None:
    """Keep this process's part of a model that all processes of the group have, in place."""
    mesh = init_device_mesh(model.device.type, (torch.distributed.get_world_size(),))
    heads = [] if model.value_head is None else [model.value_head]
    for unit in [*model.layers, *heads, model]:
        dtype = next(unit.parameters()).dtype
        reduced_in = torch.promote_types(dtype, torch.float32)
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduced_in))
        assert isinstance(unit, FSDPModule)
        # A pack's loss is its share of the whole: gradients are added up, not averaged.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    for method in ("forward_pack", "sum_pi_squared"):
        register_fsdp_forward_method(model, method)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether other processes keep parts of it."""
    return isinstance(tensor, DTensor)


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """What this process keeps of a tensor, in the same memory; of a plain one all of it."""
    if not isinstance(tensor, DTensor):
        return tensor
    if tuple(tensor.placements) != (Shard(0),):  # computed from several
        tensor = tensor.redistribute(placements=[Shard(0)])
    part: torch.Tensor = tensor.to_local()
    return part


def local_shards(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What this process is to tell of tensors that all processes have, so that `joined` gives them.

    All must ask together: some may have to be exchanged.
    """
    is_alone = not torch.distributed.is_initialized()
    rank = 0 if is_alone else torch.distributed.get_rank()
    number = 1 if is_alone else torch.distributed.get_world_size()
    return {
        name: local_shard(tensor.detach())
        if is_sharded(tensor)
        else split_shards({name: tensor.detach()}, number)[rank][name]
        for name, tensor in tensors.items()
    }


def split_shards(
    tensors: Mapping[str, torch.Tensor], num_parts: int
) -> list[dict[str, torch.Tensor]]:
    """What each process keeps of whole tensors; single numbers are kept by all.

    >>> split_shards({"w": torch.arange(3), "step": torch.tensor(7)}, 2)
    [{'w': tensor([0, 1]), 'step': tensor(7)}, {'w': tensor([2]), 'step': tensor(7)}]
    """
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(num_parts)]
    for name, tensor in tensors.items():
        pieces = [tensor] * num_parts
        if tensor.dim():
            found = tensor.chunk(num_parts)
            pieces = [*found, *[tensor[:0]] * (num_parts - len(found))]
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece
    return parts


def join_shards(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The whole tensors of which each process keeps a part.

    >>> join_shards(split_shards({"w": torch.arange(3), "step": torch.tensor(7)}, 2))
    {'w': tensor([0, 1, 2]), 'step': tensor(7)}
    """
    if len(parts) == 1:
        return dict(parts[0])
    return {
        name: torch.cat([part[name] for part in parts]) if tensor.dim() else tensor
        for name, tensor in parts[0].items()
    }
