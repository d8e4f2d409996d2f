"""VERL's whole config, made by its own tools from its own files."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.errors import ConfigError, import_extra


def compose(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> Any:
    """VERL's config with our settings, then the user's own overrides, in Hydra's words."""
    import_extra("verl", "verl")
    hydra = import_extra("hydra", "verl")
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    words = [f"++{name}={_in_hydra(value)}" for name, value in settings.items()]
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        try:
            config = hydra.compose("ppo_trainer", [*words, *overrides])
        except hydra.errors.HydraException as error:
            raise ConfigError(
                f"VERL's config does not take one of {list(overrides)}: {error}"
            ) from error
    return migrate_legacy_reward_impl(config)


def check(config: Any) -> None:
    """VERL's own look at its config; what it finds is said as ours."""
    errors = import_extra("hydra.errors", "verl")
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        # What VERL prints must not come between the lines of a config that goes to a file.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Disabled critic")  # it says what was asked for
            validate_config(
                config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
    except (AssertionError, ValueError, errors.HydraException) as error:
        raise ConfigError(f"VERL cannot run with these settings: {error}") from error


def _in_hydra(value: Any) -> str:
    """A value as Hydra's grammar writes it."""
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
