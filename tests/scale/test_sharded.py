"""Learners that keep a model in parts (FSDP2) learn what one learner with all of it does."""

import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from scale.children import run_learners
from scale.sharded_child import CASES, NUM_LEARNERS, learned, left_over, prepared
from turnwise.learner.sharded import share_of
from turnwise.learner.sharding import join_shards, split_shards
from turnwise.scale.ray.transfer import from_arrays, to_arrays

# Of bfloat16 the gradient of a pack is rounded once more, after it was added up.
TOLERANCES = {"bfloat16": 2e-2}
OF_FIGURES = {"bfloat16": 0.1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Of each case: what one learner alone did, and what two did."""
    folder = tmp_path_factory.mktemp("sharded")
    alone = {}
    for case in CASES:
        learner, batch = prepared(case)
        alone[case] = learned(learner, batch) | left_over(learner)
        torch.save(
            {kind: alone[case][kind] for kind in ("weights", "rest")}, folder / f"{case}.alone"
        )
        learner.update(batch)
        alone[case]["further"] = left_over(learner)["weights"]
    run_learners("sharded_child.py", NUM_LEARNERS, folder)
    return {
        case: (alone[case], [torch.load(folder / f"{case}.{rank}") for rank in range(NUM_LEARNERS)])
        for case in CASES
    }


def assert_close(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape
        assert torch.allclose(tensor.double(), theirs[name].double(), 0.0, tolerance), name


@pytest.mark.parametrize("case", CASES)
def test_two_learners_with_half_of_the_model_do_what_one_does(runs, case):
    alone, parts = runs[case]
    tolerance = TOLERANCES.get(case, 1e-6)
    for what in ("scores", "squares", "reference"):
        if what in alone:
            both = torch.cat([part[what] for part in parts])
            assert torch.allclose(both.double(), alone[what].double(), 0.0, tolerance)
    rel = OF_FIGURES.get(case, 1e-6)
    for what in ("metrics", "imitated", "corrected"):
        # Which tokens are clipped is a matter of the last digit, and bfloat16 has few.
        names = ("policy_loss", "grad_norm", "num_steps") if case == "bfloat16" else alone[what]
        for part in parts:
            assert case == "bfloat16" or part[what].keys() == alone[what].keys()
            for name in names:
                assert part[what][name] == pytest.approx(alone[what][name], rel=rel, abs=rel), name
    for part in parts:
        assert case == "bfloat16" or torch.allclose(
            part["seen"].double(), alone["seen"].double(), 0.0, tolerance
        )
    for what in ("weights", "rest", "policy"):
        assert_close(join_shards([part[what] for part in parts]), alone[what], tolerance)


@pytest.mark.parametrize("case", CASES)
def test_two_learners_go_on_from_what_one_left(runs, case):
    alone, parts = runs[case]
    further = join_shards([part["further"] for part in parts])
    assert_close(further, alone["further"], TOLERANCES.get(case, 1e-6))


def sent(tensors):
    """Once through the object store, which keeps the bytes apart from the rest."""
    buffers = []
    data = pickle.dumps(to_arrays(tensors), protocol=5, buffer_callback=buffers.append)
    return from_arrays(pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]))


def num_bytes(tensors):
    return sum(x.numel() * x.element_size() for x in tensors.values())


@pytest.mark.parametrize("case", CASES)
def test_each_keeps_half_of_weights_and_optimiser(runs, case):
    alone, parts = runs[case]
    for what in ("weights", "rest"):
        for part in parts:
            assert num_bytes(part[what]) < 0.6 * num_bytes(alone[what])


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4),
    st.integers(1, 5),
)
def test_parts_are_put_together_again(shapes, num_parts):
    tensors = {str(n): torch.randn(shape) for n, shape in enumerate(shapes)}
    parts = [sent(part) for part in split_shards(tensors, num_parts)]
    assert len(parts) == num_parts
    whole = join_shards(parts)
    assert whole.keys() == tensors.keys()
    assert all(torch.equal(whole[name], tensors[name]) for name in tensors)


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 5))
def test_every_row_of_a_minibatch_is_somebodys(lengths, num_workers):
    rows = torch.arange(len(lengths)) + 100
    shares = [
        share_of(rows, torch.tensor(lengths), rank, num_workers) for rank in range(num_workers)
    ]
    assert torch.cat(shares).tolist() == rows.tolist()
