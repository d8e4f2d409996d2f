"""Packing: every token once, in order, within the budget, with its mask beside it."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from turnwise import ConfigError
from turnwise.learner.packing import make_packs


@st.composite
def masks(draw):
    """Rows with tokens in any columns, of which any but the first may be the policy's."""
    num_rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    bits = st.lists(st.booleans(), min_size=width, max_size=width)
    rows = st.lists(bits, min_size=num_rows, max_size=num_rows)
    present = torch.tensor(draw(rows))
    sampled = torch.tensor(draw(rows)) & present & (present.cumsum(1) > 1)
    return present, sampled


@settings(deadline=None)
@given(masks(), st.integers(1, 20))
def test_every_token_is_packed_once_in_its_order(both, budget):
    present, sampled = both
    names = torch.arange(present.numel()).view(present.shape)
    packs = make_packs(present, sampled, torch.arange(len(present)), budget)
    seen, trained = [], []
    for pack in packs:
        tokens = pack.take(names)
        assert pack.num_tokens <= budget or len(pack.lengths) == 1
        assert sum(pack.lengths) == pack.num_tokens == len(tokens)
        for row, episode in zip(pack.rows, torch.split(tokens, list(pack.lengths)), strict=True):
            assert episode.tolist() == names[row][present[row]].tolist()
        assert pack.positions.tolist() == [i for n in pack.lengths for i in range(n)]
        assert pack.row_of[pack.ends].tolist() == list(range(len(pack.lengths)))
        assert (pack.positions[pack.ends] + 1).tolist() == list(pack.lengths)
        seen += tokens.tolist()
        trained += tokens[pack.targets].tolist()
    assert sorted(seen) == names[present].tolist()
    assert sorted(trained) == names[sampled].tolist()


def test_a_first_token_that_was_sampled_is_refused():
    present = torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(ConfigError, match="begins with a token"):
        make_packs(present, present, torch.arange(1), 10)


def test_a_budget_below_one_is_refused():
    present, sampled = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[False, True]])
    with pytest.raises(ConfigError, match="micro_batch_tokens got 0"):
        make_packs(present, sampled, torch.arange(1), 0)
