"""VERL's whole config, composed by Hydra from VERL's own files, and checked."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.errors import ConfigError, import_extra
from turnwise.scale.verl.arguments import VerlArguments


def compose(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> Any:
    """Return VERL's config with our settings, then the user's own overrides in Hydra's syntax."""
    import_extra("verl", "verl")
    hydra = import_extra("hydra", "verl")
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    assignments = [f"++{name}={_in_hydra(value)}" for name, value in settings.items()]
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        try:
            config = hydra.compose("ppo_trainer", [*assignments, *overrides])
        except hydra.errors.HydraException as error:
            raise ConfigError(
                f"VERL's config does not take one of {list(overrides)}: {error}"
            ) from error
    return migrate_legacy_reward_impl(config)


def check(config: Any) -> None:
    """Run VERL's own checks of its config; what they find is raised as a `ConfigError`."""
    errors = import_extra("hydra.errors", "verl")
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        # What VERL prints must not mix with a config that is printed to stdout.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Disabled critic")  # it is what was asked for
            validate_config(
                config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
    except (AssertionError, ValueError, errors.HydraException) as error:
        raise ConfigError(f"VERL cannot run with these settings: {error}") from error


def check_limits_of_verl(config: Any, on_error: str, arguments: VerlArguments) -> None:
    """Refuse what VERL's trainers cannot do with a user's arguments and settings."""
    if config.trainer.use_v1 and on_error != "retry":
        raise ConfigError(
            f"training.on_error got {on_error!r}. VERL's V1 trainer continues without the "
            "episodes that failed; take 'retry', or trainer.use_v1=false."
        )
    if config.trainer.use_v1 and arguments.names:
        raise ConfigError(
            f"VERL's V1 trainer makes its own components: {', '.join(arguments.names)} cannot be "
            "passed to it. Leave them out, or train with trainer.use_v1=false."
        )
    rollout = config.actor_rollout_ref.rollout
    episodes = config.data.train_batch_size * rollout.n
    if not config.trainer.use_v1 and episodes % rollout.agent.num_workers:
        raise ConfigError(
            f"ray.num_actors got {rollout.agent.num_workers}, and VERL deals the {episodes} "
            "episodes of a step out evenly. Take a number that divides them."
        )


def _in_hydra(value: Any) -> str:
    """Return a value as Hydra's grammar writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_in_hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_in_hydra, value)) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return repr(value)
