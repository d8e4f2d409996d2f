"""The fast forms give what the plain ones give: every algorithm, its metrics and its gradient."""

from __future__ import annotations

import pytest

from algo.batches import assert_close, make_batch
from algo.cases import ALL
from turnwise.plain_mode import plain_mode


@pytest.mark.parametrize("kind", ["ragged", "one token", "all masked"])
def test_fast_and_plain_agree(kind: str) -> None:
    batch = make_batch(kind, seed=3)
    for case in ALL:
        outcomes = []
        for plain in (True, False):
            with plain_mode(plain):
                gradient = case.gradient(batch) if case.variable else 0.0
                outcomes.append((case.run(batch), gradient))
        try:
            assert_close(*(result for result, _ in outcomes), 2e-5)
            if case.variable:
                assert_close(*(gradient for _, gradient in outcomes), 2e-6)
        except AssertionError as error:
            raise AssertionError(f"{case.label}: {error}") from error
