"""`CustomEnvDataset`: the rows are the openings of an environment."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, overload

from turnwise.data.dataset import RLHFDataset
from turnwise.deadlines import run_sync
from turnwise.env import environment_factory, reset_environment
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.errors import ConfigError


class CustomEnvDataset(RLHFDataset):
    """Row i is how an environment opens with the seed `seed + i`.

    `environment` is a name, a class, a factory or an instance, which stays as it is. An item has
    the `prompt` (the environment's prefix and its first observation), the `seed`, the `state` in
    words, and `expected_action` where the environment knows a good player's. The other options are
    `RLHFDataset`'s. For evaluation, begin where the training's seeds end.

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
        **options: Any,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size got {size}, expected at least 1")
        self.environment = environment
        openings = Openings(environment_factory(environment), size, seed)
        super().__init__(openings, tokenizer, **options)


class Openings(Sequence[dict[str, Any]]):
    """What an environment says first, seed by seed; each on a fresh one."""

    def __init__(self, make: EnvironmentFactory, size: int, seed: int) -> None:
        self._make = make
        self._size = size
        self._seed = seed

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Sequence[dict[str, Any]]:
        numbers = range(self._size)
        if isinstance(index, slice):
            return [self._open(self._seed + number) for number in numbers[index]]
        return self._open(self._seed + numbers[operator.index(index)])

    def _open(self, seed: int) -> dict[str, Any]:
        environment = self._make()
        try:
            observation = run_sync(reset_environment(environment, seed))
            row = {
                "prompt": "\n\n".join(filter(None, [environment.get_prompt_prefix(), observation])),
                "seed": seed,
                "state": environment.get_state_description(),
            }
            action = environment.expert_action()
        finally:
            environment.close()
        return row if action is None else {**row, "expected_action": action}
