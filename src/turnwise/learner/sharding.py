"""Sharding of a model over processes (FSDP2): each keeps a shard of every parameter.

A layer is gathered when it is computed, then freed; its gradients are reduced and scattered to the
shards. Tensors are split along the first dimension, so that all shards together can be joined
without a process group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from turnwise.learner.tensor_file import rows_of_shard
from turnwise.models.empty import is_empty, model_device
from turnwise.models.rounding import round_weight, threshold_key
from turnwise.models.weight_files import read_wide, stored_names

if TYPE_CHECKING:
    from turnwise.learner.model import PolicyValueModel


def shard(model: PolicyValueModel) -> None:
    """Shard a model that all processes of the group have, in place.

    One without weights (`load_empty_model`) gets its shards from its files, and is probed then.
    """
    has_no_weights = is_empty(model)
    device = model_device(model.policy)
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    heads = [] if model.value_head is None else [model.value_head]
    for unit in [*model.layers, *heads, model]:
        dtype = next(unit.parameters()).dtype
        reduced_in = torch.promote_types(dtype, torch.float32)
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=reduced_in))
        assert isinstance(unit, FSDPModule)
        # A pack's loss is its share of the whole: gradients are summed, not averaged.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
    for method in ("forward_pack", "sum_pi_squared", "probe"):
        register_fsdp_forward_method(model, method)
    if has_no_weights:
        _load_shards(model, device)


@torch.no_grad()
def _load_shards(model: Any, device: torch.device) -> None:
    """Read this process's shards of a sharded model that has no weights yet from its files."""
    model._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x)
    for one in [model.policy] if model.critic is None else [model.policy, model.critic]:
        stored = stored_names(one)
        for name, parameter in one.named_parameters():
            if name in stored:
                values = one.weight_files.read(stored[name], *local_rows(parameter))
                target = local_shard(parameter)
                first = first_element(parameter)
                target.copy_(round_weight(values, target.dtype, threshold_key(name), first=first))
    model.probe(device)
    model.reshard()  # a backward would do it


def read_first_masters(model: PolicyValueModel) -> dict[str, Callable[[], torch.Tensor]]:
    """Return functions that read the float32 values of parameters, or of this process's shards of
    them, where files have more precision than the model."""
    parameters = dict(model.named_parameters())
    readers: dict[str, Callable[[], torch.Tensor]] = {}
    for prefix, part in (("policy", model.policy), ("critic", model.critic)):
        for part_name, read in read_wide(part).items():
            name = f"{prefix}.{part_name}"
            if name in parameters:  # a critic may be the policy itself
                readers[name] = partial(read, *local_rows(parameters[name]))
    return readers


def local_rows(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first row of this process's shard of a tensor, and the one after its last."""
    if not isinstance(tensor, DTensor):
        return 0, len(tensor)
    mesh = tensor.device_mesh
    return rows_of_shard(len(tensor), mesh.get_local_rank(), mesh.size())


def first_element(tensor: torch.Tensor) -> int:
    """Return the index, in the whole tensor, of the first element of this process's shard."""
    return local_rows(tensor)[0] * math.prod(tensor.shape[1:]) if tensor.dim() else 0


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a tensor, in the same memory; a plain tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    if tuple(tensor.placements) != (Shard(0),):  # computed from several
        tensor = tensor.redistribute(placements=[Shard(0)])
    local: torch.Tensor = tensor.to_local()
    return local


def as_shard(shard: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor of which the processes have such shards as they have of another one."""
    if not isinstance(like, DTensor):
        return shard
    shape, stride = like.shape, like.stride()
    return DTensor.from_local(shard, like.device_mesh, [Shard(0)], shape=shape, stride=stride)


def local_shards(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return this process's shards of tensors; those of all processes are joined by `join_shards`.

    A collective: all processes must call it together.
    """
    rank, number = 0, 1
    if torch.distributed.is_initialized():
        rank, number = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return {
        name: local_shard(tensor.detach())
        if isinstance(tensor, DTensor)
        else _take_shard(tensor.detach(), rank, number)
        for name, tensor in tensors.items()
    }


def split_shards(
    tensors: Mapping[str, torch.Tensor], num_shards: int
) -> list[dict[str, torch.Tensor]]:
    """Split tensors into the shards of each process; scalars are kept by all.

    >>> split_shards({"w": torch.arange(3), "step": torch.tensor(7)}, 2)
    [{'w': tensor([0, 1]), 'step': tensor(7)}, {'w': tensor([2]), 'step': tensor(7)}]
    """
    return [
        {name: _take_shard(tensor, rank, num_shards) for name, tensor in tensors.items()}
        for rank in range(num_shards)
    ]


def _take_shard(tensor: torch.Tensor, rank: int, num_shards: int) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    first, last = rows_of_shard(len(tensor), rank, num_shards)
    return tensor[first:last]


def join_shards(shards: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the whole tensors, given the shards of each process.

    >>> join_shards(split_shards({"w": torch.arange(3), "step": torch.tensor(7)}, 2))
    {'w': tensor([0, 1, 2]), 'step': tensor(7)}
    """
    if len(shards) == 1:  # without a copy
        return dict(shards[0])
    return {
        name: torch.cat([shard[name] for shard in shards]) if tensor.dim() else tensor
        for name, tensor in shards[0].items()
    }
