"""The discounted sum of what is to come, over the policy's tokens."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from algo.batches import MASKS, assert_close, assert_same, make_batch
from algo.cases import SUMS, Case, each
from algo.reference import reference_of
from turnwise.algo import discounted_suffix_sum

SUFFIX_SUMS = [case for case in SUMS if case.function == "discounted_suffix_sum"]


@each(SUFFIX_SUMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_the_reference(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    for kind in MASKS:
        batch = make_batch(kind, dtype=dtype)
        result = case.run(batch)
        assert result.dtype == dtype
        assert_close(result, case.expected(batch), tolerance)


@pytest.mark.parametrize("decay", [1.0, 0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 1e-4, 1e-8])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_any_length_and_decay_is_accurate(num_rows: int, decay: float) -> None:
    for length in (1, 2, 3, 4, 7, 64, 97, 1009, 5000):
        random = torch.Generator().manual_seed(length)
        x = torch.randn(num_rows, length, generator=random)
        mask = torch.rand(num_rows, length, generator=random) < 0.8
        expected = torch.tensor(
            reference_of("discounted_suffix_sum")(x.double().tolist(), mask.tolist(), decay),
            dtype=torch.float64,
        )
        # Relative to the size of the sums: 5000 undiscounted terms are some 70 times one term.
        size = max(1.0, float(expected.abs().max()))
        assert_close(discounted_suffix_sum(x, mask, decay), expected, 2e-6 * size)
        assert_close(discounted_suffix_sum(x.double(), mask, decay), expected, 1e-11 * size)


@given(
    rows=st.integers(1, 3),
    length=st.integers(1, 40),
    decay=st.just(0.0) | st.floats(1e-9, 1.0),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_each_sum_is_its_own_term_and_the_decayed_next(
    rows: int, length: int, decay: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, generator=random)
    mask = torch.rand(rows, length, generator=random) < 0.7
    sums = discounted_suffix_sum(x, mask, decay)
    for i in range(rows):
        places = mask[i].nonzero().flatten().tolist()
        for here, following in zip(places, [*places, None][1:], strict=True):
            later = 0.0 if following is None else sums[i, following].item()
            assert sums[i, here].item() == pytest.approx(
                x[i, here].item() + decay * later, abs=2e-5
            )
    assert torch.all(sums[~mask] == 0)


@pytest.mark.parametrize("decay", [1e-30, 1e-38, 1e-46, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_decay_close_to_nothing_leaves_the_terms_as_they_are(
    decay: float, dtype: torch.dtype
) -> None:
    x = torch.tensor([[9.0, -2.0, 5.0], [1.0, 2.0, 3.0]], dtype=dtype)
    assert_close(discounted_suffix_sum(x, torch.ones(2, 3), decay), x, 1e-6)


def test_half_precision_is_computed_in_float32() -> None:
    x = torch.ones(1, 1000, dtype=torch.bfloat16)
    sums = discounted_suffix_sum(x, torch.ones(1, 1000, dtype=torch.bool), 1.0)
    assert sums.dtype == torch.float32
    assert sums[0, 0] == 1000


def test_the_far_future_does_not_drown_what_is_near() -> None:
    """A huge term that has decayed away leaves the small ones accurate."""
    x = torch.full((1, 200), 0.25)
    x[0, -1] = 1e6
    sums = discounted_suffix_sum(x, torch.ones(1, 200, dtype=torch.bool), 0.5)
    assert_close(sums[0, :150], [0.5] * 150, 1e-6)


def test_rows_do_not_touch_each_other() -> None:
    batch = make_batch("ragged")
    x, mask = batch["values"], batch["response_mask"]
    whole = discounted_suffix_sum(x, mask, 0.9)
    for i in range(len(x)):
        assert_same(discounted_suffix_sum(x[i : i + 1], mask[i : i + 1], 0.9), whole[i : i + 1])
