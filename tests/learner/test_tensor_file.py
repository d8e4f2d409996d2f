"""Safetensors files that are written and read in shards."""

import torch
from hypothesis import given, strategies as st
from safetensors.torch import save_file

from turnwise.learner.sharding import split_shards
from turnwise.learner.tensor_file import TensorFile, TensorFileWriter

DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
tensors = st.dictionaries(
    st.text('ab.é"\\ ', min_size=1, max_size=6),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
    min_size=1,
    max_size=5,
)


def filled(shapes):
    torch.manual_seed(0)
    return {
        name: torch.randint(0, 100, shape, dtype=torch.uint8).to(dtype)
        for name, (dtype, shape) in shapes.items()
    }


def written(path, whole, num_shards):
    with TensorFileWriter(path, whole) as file:
        for shard in split_shards(whole, num_shards):
            for name, tensor in shard.items():
                file.append(name, tensor)


@given(tensors, st.integers(1, 4))
def test_shards_make_the_file_that_safetensors_writes(tmp_path_factory, shapes, num_shards):
    folder = tmp_path_factory.mktemp("files")
    whole = filled(shapes)
    written(folder / "ours", whole, num_shards)
    save_file(whole, folder / "theirs")
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


@given(tensors, st.integers(1, 4))
def test_each_shard_is_read_alone(tmp_path_factory, shapes, num_shards):
    path = tmp_path_factory.mktemp("files") / "file"
    whole = filled(shapes)
    save_file(whole, path)
    file = TensorFile(path)
    assert file.shapes == {name: tuple(x.shape) for name, x in whole.items()}
    for rank, expected in enumerate(split_shards(whole, num_shards)):
        shard = file.shard(rank, num_shards)
        assert set(shard) == set(expected)
        for name, tensor in shard.items():
            assert tensor.dtype == expected[name].dtype
            assert torch.equal(tensor, expected[name])
