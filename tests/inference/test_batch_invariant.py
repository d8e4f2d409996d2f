"""Batch sizes that leave a row's bits alone are found by measuring, not believed."""

import torch
from torch import nn

from turnwise.inference.local import batch_invariant
from turnwise.inference.local.batch_invariant import batch_invariant_sizes


def sizes_of(layer, width=8, num_out=8):
    return batch_invariant_sizes([(layer, torch.zeros(num_out, width), width)])


def test_a_layer_that_treats_each_row_alone_takes_every_size():
    sizes = sizes_of(lambda rows: rows * 2.0)
    assert sizes[0] == 1
    assert sizes[-1] == 2048


def test_a_size_at_which_the_library_sums_otherwise_is_left_out():
    sizes = sizes_of(lambda rows: rows + (1e-6 if len(rows) == 48 else 0.0))
    assert 48 not in sizes
    assert {32, 64} <= set(sizes)


def test_a_layer_whose_rows_see_their_neighbours_computes_them_one_by_one():
    assert sizes_of(lambda rows: rows + rows.flip(0).cumsum(0)) == [1]


def test_a_size_must_suit_all_layers():
    layers = [
        (lambda rows: rows + (1.0 if len(rows) > 64 else 0.0), torch.zeros(8, 8), 8),
        (lambda rows: rows + (1.0 if len(rows) < 8 else 0.0), torch.zeros(4, 8), 8),
    ]
    sizes = batch_invariant_sizes(layers)
    assert (sizes[0], sizes[-1]) == (8, 64)


def test_a_kernel_is_measured_once_and_another_one_again(monkeypatch):
    measured = []
    monkeypatch.setattr(batch_invariant, "_measured", {})
    monkeypatch.setattr(
        batch_invariant,
        "_invariant_for",
        lambda layer, weight, width, sizes: measured.append(width) or {1, 32},
    )

    def measure(layer):
        assert batch_invariant_sizes([(layer, layer.weight, layer.weight.shape[1])]) == [1, 32]
        return len(measured)

    assert measure(nn.Linear(8, 8)) == measure(nn.Linear(8, 8)) == 1
    assert measure(nn.Linear(8, 8, bias=False)) == 2
    assert measure(nn.Linear(8, 8).double()) == 3
    assert measure(nn.Linear(6, 8)) == 4

    class Doubled(nn.Linear):
        """Of whose arithmetic nothing is known."""

    assert measure(Doubled(8, 8)) == 5
    assert measure(Doubled(8, 8)) == 6


def test_a_large_model_is_not_tried_with_thousands_of_rows():
    sizes = batch_invariant_sizes([(lambda rows: rows, torch.empty(50_000, 600), 600)])
    assert sizes[-1] == 256
