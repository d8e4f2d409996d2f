"""`EpisodeComponents`: a user's environment, reward and tools, sent to VERL's workers."""

import base64
import dataclasses
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.compat.multi_turn import MultiTurnInferenceEngine
from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode import CollectorOptions
from turnwise.errors import ConfigError, describe_error, import_extra
from turnwise.trainer.components import UserComponents
from turnwise.user_code import is_installed


@dataclass(frozen=True)
class EpisodeComponents:
    """What a worker needs to play episodes."""

    factory: EnvironmentFactory
    options: CollectorOptions
    keeps_trajectories: bool = False
    """Whether episodes are returned to the driver, which scores whole batches of them."""


def episode_components(
    user: UserComponents,
    config: ConfigStore,
    engine: MultiTurnInferenceEngine | None = None,
    *,
    scores_batches: bool = False,
) -> EpisodeComponents:
    """Return the components that a user gave, with the turns and tools of a multi-turn engine."""
    options = user.episode_options(config)
    if engine is not None:
        assert options.limits is not None  # `filled_from` gives them
        setup = engine.setup
        options = dataclasses.replace(
            options,
            limits=dataclasses.replace(options.limits, max_turns=engine.max_turns),
            system_prompt=options.system_prompt or setup.system_prompt or None,
        )
        if options.tools is None and setup.tools is not None:
            options = dataclasses.replace(options, tools=setup.tools, parser=setup.parser)
    if scores_batches:
        options = dataclasses.replace(options, reward_fn=None)
    return EpisodeComponents(user.factory(config), options, keeps_trajectories=scores_batches)


def pack(components: EpisodeComponents) -> str:
    """Return them as text that fits into VERL's config.

    Code of a script, a notebook or a file next to it is pickled by value: the workers cannot
    import it.
    """
    cloudpickle: Any = import_extra("ray.cloudpickle", "verl")
    modules = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        is_ours = name.split(".")[0] in ("turnwise", "__main__")
        is_alias = getattr(module, "__name__", None) != name
        if file is not None and not is_ours and not is_alias and not is_installed(Path(file)):
            modules.append(module)
            cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(components)
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise ConfigError(
            "the environment, the reward or a tool cannot be sent to VERL's workers: "
            f"{describe_error(error)}. Open files, locks and connections in reset(), or pass a "
            "class or a factory instead of an object that holds them."
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return base64.b64encode(zlib.compress(data)).decode()


@lru_cache(maxsize=4)  # each process plays many episodes of one run
def unpack(text: str) -> EpisodeComponents:
    """Return what `pack` made a text of."""
    cloudpickle: Any = import_extra("ray.cloudpickle", "verl")
    components: EpisodeComponents = cloudpickle.loads(zlib.decompress(base64.b64decode(text)))
    return components
