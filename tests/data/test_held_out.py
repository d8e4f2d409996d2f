"""Rows that are held out: by their content alone."""

import random

import pytest

from forked import fork_server
from turnwise import CustomEnvDataset, PromptDataset
from turnwise.data.held_out import split_rows
from turnwise.episode.seeds import held_out_seed, training_seed


def rows(number, first=0):
    return [{"prompt": f"question {i}", "answer": i} for i in range(first, first + number)]


def texts(part):
    return {row["prompt"] for row in part}


def test_a_twentieth_of_many_rows():
    split = split_rows(rows(2000), 0.05)
    assert len(split.train) + len(split.held_out) == 2000
    assert 70 <= len(split.held_out) <= 130
    assert not texts(split.train) & texts(split.held_out)


@pytest.mark.parametrize(
    ("given", "fraction"), [(rows(63), 0.05), (rows(10) * 50, 0.05), (rows(500), None)]
)
def test_none_where_too_few_differ_or_none_are_wanted(given, fraction):
    split = split_rows(given, fraction)
    assert split.held_out is None
    assert split.train is given


def test_order_and_equal_rows_do_not_matter():
    given = rows(300)
    shuffled = [*given, *given[:100]]
    random.Random(0).shuffle(shuffled)
    split, again = split_rows(given, 0.05), split_rows(shuffled, 0.05)
    assert texts(split.held_out) == texts(again.held_out)
    assert not texts(again.train) & texts(again.held_out)


@pytest.mark.parametrize("number", [64, 200, 1000])
def test_a_row_that_was_trained_on_is_never_held_out_when_rows_are_added(number):
    before, after = split_rows(rows(number), 0.05), split_rows(rows(3 * number), 0.05)
    assert not texts(before.train) & texts(after.held_out)
    if number == 1000:  # where a twentieth is enough, added rows change nothing at all
        assert texts(before.held_out) <= texts(after.held_out)


def held_out_indices():
    given = [{"prompt": str(i), "at": object} for i in range(80)]
    return list(split_rows(given, 0.1).held_out.indices)


def test_another_process_holds_out_the_same_rows():
    """One with other hashes of the same texts."""
    with fork_server().Pool(1) as pool:
        assert pool.apply(hash, ["a"]) != hash("a")
        assert pool.apply(held_out_indices) == held_out_indices()


def test_some_seeds_of_an_environment_that_is_a_dataset():
    openings = CustomEnvDataset("guess-number", size=100)
    split = split_rows(openings, 0.05)
    seeds = [{row["seed"] for row in part} for part in (split.train, split.held_out)]
    assert len(seeds[1]) >= 16
    assert seeds[0] | seeds[1] == set(range(100))


def test_items_of_a_users_own_method_are_not_split():
    class Own(PromptDataset):
        def __getitem__(self, index):
            return {"prompt": str(random.random())}

    own = Own(size=100)
    assert split_rows(own, 0.05).train is own


def test_a_seed_of_an_evaluation_is_never_one_of_training():
    held_out = {held_out_seed(seed, "eval", number) for seed in range(3) for number in range(300)}
    trained = [
        training_seed(0, "train", step, 0, place) for step in range(2000) for place in (0, 1)
    ]
    trained += [training_seed(0, "rare", n) for n in range(70_000)]
    assert all(seed % 2**16 == 0xE7A1 for seed in held_out)
    assert not any(seed % 2**16 == 0xE7A1 for seed in trained)
    assert len(held_out) == 900
