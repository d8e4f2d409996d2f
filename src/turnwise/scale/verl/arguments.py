"""`VerlArguments`: the arguments that a user passes on to VERL's own trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from turnwise.episode.batch_reward import object_array
from turnwise.errors import ConfigError, did_you_mean
from turnwise.reward import RewardFn

_ALIASES = {"CriticValue": "Critic"}
"""Names of roles in older texts about VERL."""
_ACTORS = ("ActorRollout", "ActorRolloutRef")
_POOL = "global_pool"


@dataclass(frozen=True)
class VerlArguments:
    """Worker classes, resource pools, sampler and so on; None: made as VERL's command does."""

    role_worker_mapping: Mapping[Any, type] = field(default_factory=dict)
    """Worker classes by role (`Role.Critic`) or its name; missing roles keep VERL's.
    A worker of the role RewardModel scores every batch by its `compute_rm_score(data)`."""
    resource_pool_manager: Any = None
    collate_fn: Callable[[list[Any]], Mapping[str, Any]] | None = None
    train_sampler: Any = None
    """Chooses among the rows of the training dataset."""
    device_name: str | None = None
    reward_fn: RewardFn | None = None
    """A reward function of whole batches, called in the process that drives the training."""

    @property
    def names(self) -> list[str]:
        """The names of the arguments that were given."""
        names = ("role_worker_mapping", "resource_pool_manager", "collate_fn", "train_sampler")
        found = [name for name in names if getattr(self, name)]
        return [*found, *(["a reward_fn of batches"] if self.reward_fn else [])]

    @property
    def scores_batches(self) -> bool:
        """Whether the driver scores whole batches; the episodes then have no rewards."""
        reward_models = [key for key in self.role_worker_mapping if _name_of(key) == "RewardModel"]
        return bool(reward_models) or self.reward_fn is not None

    def workers(self, standard: Mapping[Any, Any]) -> tuple[dict[Any, Any], Any]:
        """Return the worker classes of all roles, and that of the reward model, if there is one."""
        import ray
        from verl.trainer.ppo.utils import Role

        found = dict(standard)
        actor = next(role for role in standard if role.name in _ACTORS)
        for key, worker in self.role_worker_mapping.items():
            role = role_of(key)
            # The actor's worker may hold the reference too; its role then has another name.
            place = actor if role.name in _ACTORS else role
            found[place] = ray.remote(worker) if isinstance(worker, type) else worker
        return found, found.pop(Role.RewardModel, None)

    def pools(self, runner: Any, config: Any) -> Any:
        """Return VERL's resource pools: the given ones, or one for all roles."""
        roles = [role_of(key) for key in self.role_worker_mapping]
        if self.resource_pool_manager is None:
            for role in roles:
                runner.mapping.setdefault(role, _POOL)
            return runner.init_resource_pool_mgr(config)
        manager = self.resource_pool_manager
        missing = {*runner.mapping, *roles} - set(manager.mapping)
        if missing:
            names = ", ".join(sorted(role.name for role in missing))
            raise ConfigError(
                f"resource_pool_manager has no pool for: {names}. Add them to its mapping."
            )
        return manager

    def collate(self, standard: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """Return the function that makes batches of rows; its lists become what VERL takes."""
        if self.collate_fn is None:
            return standard
        given = self.collate_fn
        return lambda rows: {name: _column(value) for name, value in given(rows).items()}


def _name_of(key: Any) -> str:
    return str(getattr(key, "name", key))


def role_of(key: Any) -> Any:
    """Return a role of VERL's, given itself or its name."""
    from verl.trainer.ppo.utils import Role

    if isinstance(key, Role):
        return key
    name = _ALIASES.get(key, key)
    if name in Role.__members__:
        return Role[name]
    known = [*Role.__members__, *_ALIASES]
    raise ConfigError(f"role_worker_mapping got the role {key!r}. {did_you_mean(str(key), known)}")


def _column(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    if value and all(isinstance(one, torch.Tensor) for one in value):
        return torch.stack(list(value))
    return object_array(list(value))
