"""`CustomEnvDataset`: each row is the initial prompt of an environment for one seed."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.data.dataset import PromptDataset
from turnwise.deadlines import is_async, run_sync
from turnwise.env import environment_factory, reset_environment
from turnwise.env.catalog import EnvironmentSource
from turnwise.env.driver import finish_without_loop
from turnwise.errors import ConfigError


class CustomEnvDataset(PromptDataset):
    """Row i is the initial prompt of an environment that is reset with the seed `seed + i`.

    `environment` is a name, a class, a factory or an instance, which is not changed; `config` is
    the environment's, the other options are `PromptDataset`'s. An item has the `prompt` (prefix and
    first observation), the `seed`, the `state` as text, and `expected_action` if the environment
    has an expert. For evaluation, begin after the last seed of the training.

    >>> dataset = CustomEnvDataset("grid-world", size=3)
    >>> len(dataset), dataset[2]["seed"], dataset[2]["expected_action"]
    (3, 2, 'right')
    """

    def __init__(
        self,
        environment: EnvironmentSource,
        size: int = 1000,
        seed: int = 0,
        tokenizer: Any = None,
        *,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size got {size}, expected at least 1")
        self.environment = environment
        super().__init__(InitialPrompts(environment, config, size, seed), tokenizer, **options)


class InitialPrompts:
    """The initial prompts of an environment by seed; a fresh environment makes each."""

    def __init__(
        self,
        environment: EnvironmentSource,
        config: EnvironmentConfig | Mapping[str, Any] | None,
        size: int,
        seed: int,
    ) -> None:
        self._environment = environment
        self._config = config
        self._make = environment_factory(environment, config)
        self._size = size
        self._seed = seed

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_make"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make = environment_factory(self._environment, self._config)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        seed = self._seed + range(self._size)[operator.index(index)]
        environment = self._make()
        try:
            reset = reset_environment(environment, seed)
            if is_async(environment.reset):
                observation = run_sync(reset)
            else:  # a new event loop would take longer than most resets
                observation = finish_without_loop(reset, f"{type(environment).__name__}.reset()")
            row = {
                "prompt": "\n\n".join(filter(None, [environment.get_prompt_prefix(), observation])),
                "seed": seed,
                "state": environment.get_state_description(),
            }
            action = environment.expert_action()
        finally:
            environment.close()
        return row if action is None else {**row, "expected_action": action}
