"""What holds for every function that takes a mask, on masks and groups that hypothesis draws."""

from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from algo.batches import MASKS, TOKEN_FIELDS, assert_close, assert_same, copied, make_batch
from algo.cases import ALL, VALUE_LOSSES, WITH_OPTIONS, Case, each, every_mode
from every_case import named
from turnwise.algo import BatchTotals

# Of GAE not every pair of gamma and lambda.
DISTINCT = [case for case in ALL if case.options.get("gamma") not in (0.0, 0.3, 0.99)]
WITH_GRADIENT = [case for case in DISTINCT if case.variable]
GROUPED = [case for case in DISTINCT if "index" in case.takes]

# What is picked over the whole batch cannot be picked part by part.
SUM_OF_PARTS = [
    *(way for case in WITH_OPTIONS if "_cov_" not in case.function for way in every_mode(case)),
    *VALUE_LOSSES,
]

# The penalty hands the rewards of masked tokens back as they came.
PASSES_THROUGH = ("apply_kl_penalty",)

RUBBISH = [float("nan"), float("inf"), float("-inf"), 1e30, -1e30]


@st.composite
def masks(draw: st.DrawFn) -> torch.Tensor:
    num_rows, length = draw(st.integers(2, 7)), draw(st.integers(1, 9))
    row = st.lists(st.booleans(), min_size=length, max_size=length)
    return torch.tensor(draw(st.lists(row, min_size=num_rows, max_size=num_rows)))


def with_rubbish(batch: dict[str, Any], rubbish: float) -> dict[str, Any]:
    """The batch with all masked tokens of all fields overwritten."""
    batch, mask = copied(batch), batch["response_mask"]
    for name in TOKEN_FIELDS:
        batch[name][~mask] = -12345 if name == "turn_ids" else rubbish
    return batch


def results(case: Case, batch: dict[str, Any]) -> Any:
    """What a call gives; rewards that are passed through count on policy tokens only."""
    result = case.run(batch)
    if case.function in PASSES_THROUGH:
        return torch.where(batch["response_mask"], result[0], 0.0), result[1]
    return result


@given(mask=masks(), seed=st.integers(0, 99), rubbish=st.sampled_from(RUBBISH))
@settings(max_examples=5)
def test_masked_tokens_never_change_a_result(mask, seed, rubbish):
    batch = make_batch(seed=seed, mask=mask)
    dirty = with_rubbish(batch, rubbish)
    for case in DISTINCT:
        with named(case.label):
            assert_same(results(case, dirty), results(case, batch))


@given(mask=masks(), seed=st.integers(0, 99), rubbish=st.sampled_from(RUBBISH))
@settings(max_examples=5)
def test_masked_tokens_have_no_gradient_and_change_none(mask, seed, rubbish):
    batch = make_batch(seed=seed, mask=mask)
    dirty = with_rubbish(batch, rubbish)
    for case in WITH_GRADIENT:
        with named(case.label):
            gradient = case.gradient(dirty)
            assert torch.all(gradient[~mask] == 0)
            assert_same(gradient, case.gradient(batch))


@given(mask=masks(), seed=st.integers(0, 99))
@settings(max_examples=3)
def test_equals_the_reference_on_any_mask(mask, seed):
    batch = make_batch(seed=seed, mask=mask, dtype=torch.float64)
    for case in DISTINCT:
        # Which of two equal covariances is the higher is not ours to say.
        if case.function != "compute_kl_cov_loss":
            with named(case.label):
                assert_close(case.run(batch), case.expected(batch), 1e-8)


@each(ALL)
def test_equals_the_reference(case):
    for kind in MASKS:
        batch = make_batch(kind, seed=1)
        assert_close(case.run(batch), case.expected(batch), 1e-5)


@each(SUM_OF_PARTS)
def test_parts_with_the_totals_of_the_whole_add_up(case):
    batch = make_batch(seed=7)
    mask = batch["response_mask"]
    totals = BatchTotals(int(mask.sum()), int(mask.any(1).sum()), mask.shape[1])
    of_part = Case(case.function, case.takes, {**case.options, "totals": totals}, case.variable)
    parts = [
        {n: x[rows] if isinstance(x, torch.Tensor) else x for n, x in batch.items()}
        for rows in (slice(0, 2), slice(2, 3), slice(3, 9))
    ]
    whole, results = case.run(batch), [of_part.run(part) for part in parts]
    if isinstance(whole, tuple):
        whole, results = whole[0], [result[0] for result in results]
    assert_close(sum(results), whole.item(), 1e-5)
    assert_close(torch.cat([of_part.gradient(part) for part in parts]), case.gradient(batch), 1e-6)


@each(DISTINCT)
def test_a_mask_may_be_bool_int_or_float(case):
    batch = make_batch()
    expected = case.run(batch)
    for kind in (torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64):
        assert_same(case.run(batch | {"response_mask": batch["response_mask"].to(kind)}), expected)


@each(WITH_GRADIENT)
def test_the_gradient_flows_to_one_argument_alone(case):
    batch = {
        name: x.clone().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for name, x in make_batch().items()
    }
    result = case.run(batch)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    with_gradient = {n for n, x in batch.items() if getattr(x, "grad", None) is not None}
    assert with_gradient == {case.variable}


@each(GROUPED)
def test_groups_may_be_named_by_anything(case):
    batch = make_batch()
    numbers = {"a": 10, "b": 2, "c": 3}
    as_ints = [numbers[label] for label in batch["index"]]
    expected = case.run(batch)
    for index in (as_ints, [str(n) for n in as_ints], torch.tensor(as_ints)):
        assert_same(case.run(batch | {"index": index}), expected)
