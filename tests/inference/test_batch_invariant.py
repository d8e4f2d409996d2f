"""Batch sizes that leave a row's bits alone are found by measuring, not believed."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from turnwise.inference.local.batch_invariant import batch_invariant_sizes, has_remainder
from turnwise.inference.local.fused_forward import _as_columns, _TorchOps


def sizes_of(layer, width=8, num_out=8):
    return batch_invariant_sizes([(layer, torch.zeros(num_out, width), width)])


def test_a_size_at_which_the_library_sums_otherwise_is_left_out():
    sizes = sizes_of(lambda rows: rows + (1e-6 if len(rows) == 48 else 0.0))
    assert 48 not in sizes
    assert {32, 64} <= set(sizes)


def test_a_layer_whose_rows_see_their_neighbours_computes_them_one_by_one():
    assert sizes_of(lambda rows: rows + rows.flip(0).cumsum(0)) == [1]


@pytest.fixture
def use_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 3, 6])
def test_an_activation_without_a_remainder_has_the_same_bits_in_any_batch(use_threads, num_threads):
    rows = 3 * torch.randn(1024, 200, generator=torch.Generator().manual_seed(0))
    use_threads(1)
    expected = torch.cat([F.gelu(piece) for piece in rows.split(8)])
    use_threads(num_threads)
    sizes = [n for n in range(8, 1025, 8) if not has_remainder(n * 200)]
    assert len(sizes) > 20
    assert all(torch.equal(F.gelu(rows[:n]), expected[:n]) for n in sizes)


@pytest.mark.parametrize("num_threads", [1, 3, 6])
@pytest.mark.parametrize("has_columns", [True, False])
def test_a_gate_has_the_same_bits_in_any_batch(use_threads, num_threads, has_columns):
    def gate(rows):
        return _TorchOps.gate(_as_columns(rows) if has_columns else rows.clone())

    rows = 3 * torch.randn(512, 2 * 1216, generator=torch.Generator().manual_seed(0))
    use_threads(1)
    expected = torch.cat([gate(piece) for piece in rows.split(64)])
    use_threads(num_threads)
    for number in (2, 16, 24, 32, 64, 96, 200, 512):
        assert torch.equal(gate(rows[:number]), expected[:number])
