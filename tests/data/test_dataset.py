"""Tokens of items, limits on their length, subclasses, and torch's DataLoader."""

import logging
import pickle
from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from turnwise import (
    ConfigError,
    CustomEnvDataset,
    GuessNumberEnvironment,
    PromptDataset,
    collate_fn,
)
from turnwise.models.tiny import make_tiny_tokenizer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
LENGTHS = [3, 10, 5, 20]
PROMPTS = ["x" * n for n in LENGTHS]  # as many tokens: they are bytes here


@cache
def tokenizer():
    return make_tiny_tokenizer()


def lengths(dataset):
    return [len(item["input_ids"]) for item in dataset]


def test_a_text_is_tokenized_as_it_is():
    item = PromptDataset(["Why?"], tokenizer())[0]
    assert item == {"prompt": "Why?", **tokenizer()("Why?", return_token_type_ids=False)}


def test_messages_are_written_by_the_chat_template():
    expected = tokenizer().apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )
    rows = [{"prompt": MESSAGES}, {"prompt": "Why?", "system": "Be brief."}]
    for item in PromptDataset(rows, tokenizer()):
        assert item["input_ids"] == expected
        assert item["attention_mask"] == [1] * len(expected)


def test_messages_need_a_template():
    bare = make_tiny_tokenizer()
    bare.chat_template = None
    dataset = PromptDataset([{"prompt": MESSAGES}], bare)
    with pytest.raises(ConfigError, match="no chat template"):
        dataset[0]


def test_the_tokenizers_own_options():
    options = {"return_tensors": "pt", "padding": "max_length", "max_length": 6}
    item = PromptDataset(["Why?"], tokenizer(), tokenizer_kwargs=options)[0]
    assert len(item["input_ids"]) == 6
    assert sum(item["attention_mask"]) == 4
    options = {"max_length": 2, "truncation": True}
    assert lengths(PromptDataset(["Why?"], tokenizer(), tokenizer_kwargs=options)) == [2]


def test_a_name_is_no_tokenizer():
    with pytest.raises(ConfigError, match=r"AutoTokenizer\.from_pretrained\('tiny'\)"):
        PromptDataset(["Why?"], "tiny")


class TestLimits:
    def test_too_long_is_an_error_at_once(self):
        with pytest.raises(
            ConfigError,
            match=r"2 of 4 prompts are longer than max_prompt_length=9, up to 20 tokens",
        ):
            PromptDataset(PROMPTS, tokenizer(), max_prompt_length=9)

    def test_too_long_is_left_out_and_told_once(self, caplog):
        with caplog.at_level(logging.WARNING, "turnwise"):
            dataset = PromptDataset(PROMPTS, tokenizer(), max_prompt_length=9, truncation="drop")
            assert lengths(dataset) == [3, 5]
            assert dataset[-1]["prompt"] == "x" * 5
            assert len(dataset) == 2
        assert [r.getMessage() for r in caplog.records] == [
            "2 of 4 prompts are longer than max_prompt_length=9 and left out."
        ]
        with pytest.raises(ConfigError, match="4 of 4 prompts"):
            PromptDataset(PROMPTS, tokenizer(), max_prompt_length=2, truncation="drop")

    @given(st.text(min_size=1).filter(str.strip), st.integers(4, 30), st.booleans())
    @settings(max_examples=60)
    def test_a_cut_text_ends_or_begins_as_it_did(self, text, limit, from_left):
        side = "left" if from_left else "right"
        (item,) = PromptDataset([text], tokenizer(), max_prompt_length=limit, truncation=side)
        assert len(item["input_ids"]) <= limit
        assert text.endswith(item["prompt"]) if from_left else text.startswith(item["prompt"])
        num_bytes = len(text.encode())
        # The next character, of four bytes at most, would have been too much.
        assert len(item["input_ids"]) > limit - 4 or len(item["input_ids"]) == num_bytes

    def test_messages_are_not_cut(self):
        with pytest.raises(ConfigError, match="messages cannot be cut"):
            PromptDataset(
                [{"prompt": MESSAGES}], tokenizer(), max_prompt_length=10, truncation="left"
            )

    def test_a_limit_needs_a_tokenizer(self):
        with pytest.raises(ConfigError, match="a tokenizer to count by"):
            PromptDataset(PROMPTS, max_prompt_length=9)
        with pytest.raises(ConfigError, match="expected error, drop, left, right"):
            PromptDataset(PROMPTS, tokenizer(), max_prompt_length=9, truncation="middle")


class Squares(PromptDataset):
    """A subclass that makes its items itself."""

    def __init__(self, env, **kwargs):
        self.env = env
        super().__init__(**kwargs)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        prompt = f"{index} squared?"
        tokens = self.tokenizer(prompt, **self.tokenizer_kwargs)
        return {"input_ids": tokens["input_ids"], "prompt": prompt, "state": index}


class TestSubclasses:
    def test_one_that_makes_its_items(self):
        options = {"return_tensors": "pt"}
        dataset = Squares(
            object(), tokenizer=tokenizer(), tokenizer_kwargs=options, max_prompt_length=5
        )
        assert len(dataset) == 3
        batch = collate_fn([dataset[index] for index in range(3)])
        assert batch["input_ids"].shape == (3, len("0 squared?"))
        assert batch["state"] == [0, 1, 2]
        assert [item["state"] for item in dataset] == [0, 1, 2]

    def test_one_without_a_length_of_its_own(self):
        class Cubes(Squares):
            __len__ = PromptDataset.__len__

        assert len(Cubes(object())) == 1000
        assert len(Cubes(["one", "two"])) == 2
        dataset = Cubes(object(), size=3, tokenizer=tokenizer())
        assert [item["state"] for item in dataset] == [0, 1, 2]
        for wrong in ({"size": 0}, {"size": 3, "source": ["a"]}):
            with pytest.raises(ConfigError, match=r"expected at least 1, and no source"):
                PromptDataset(**wrong)

    def test_one_without_a_tokenizer_says_whose_it_takes(self, caplog):
        dataset = pickle.loads(pickle.dumps(Squares(object())))
        assert dataset[2]["input_ids"] == tokenizer()("2 squared?")["input_ids"]
        assert dataset[1]["input_ids"]
        assert [r.getMessage()[:60] for r in caplog.records] == [
            "Squares got no tokenizer and uses that of the built-in model 'tiny'. "[:60]
        ]
        assert "input_ids" not in PromptDataset(["a"])[0]


class TestBatches:
    def test_prompts_are_padded_on_the_left(self):
        batch = collate_fn(list(PromptDataset(["ab", "c"], tokenizer())), pad_token_id=9)
        a, b, c = tokenizer()("abc")["input_ids"]
        assert batch["input_ids"].tolist() == [[a, b], [9, c]]
        assert batch["attention_mask"].tolist() == [[1, 1], [0, 1]]
        assert batch["prompt"] == ["ab", "c"]

    @given(st.lists(st.lists(st.integers(0, 300)), min_size=1))
    def test_what_is_not_padding_is_what_was_given(self, rows):
        batch = collate_fn([{"input_ids": ids} for ids in rows], pad_token_id=7)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
        assert ids.dtype == mask.dtype == torch.long
        assert [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)] == rows
        assert (ids[mask == 0] == 7).all()

    def test_without_tokens_there_are_only_lists(self):
        batch = collate_fn([{"prompt": "a", "n": 1}, {"prompt": "b", "m": 2}])
        assert batch == {"prompt": ["a", "b"], "n": [1, None], "m": [None, 2]}

    @pytest.mark.parametrize(
        ("items", "told"),
        [
            ([], "no items"),
            ([{"input_ids": [1]}, {"prompt": "b"}], "item 1 of the batch has no input_ids"),
        ],
    )
    def test_items_that_make_no_batch_are_told(self, items, told):
        with pytest.raises(ConfigError, match=told):
            collate_fn(items)

    def test_torchs_loader_takes_both(self):
        dataset = PromptDataset(PROMPTS, tokenizer())
        collate = partial(collate_fn, pad_token_id=tokenizer().pad_token_id)
        batches = list(DataLoader(dataset, batch_size=3, collate_fn=collate))
        assert [tuple(batch["input_ids"].shape) for batch in batches] == [(3, 10), (1, 20)]
        assert [p for batch in batches for p in batch["prompt"]] == PROMPTS


class TestInitialPrompts:
    def test_items_are_the_openings_seed_by_seed(self):
        dataset = CustomEnvDataset("guess-number", size=5, seed=100)
        assert len(dataset) == 5
        env = GuessNumberEnvironment()
        for number, item in enumerate(dataset):
            env.seed(100 + number)
            observation = env.reset()
            assert item == {
                "prompt": f"{env.get_prompt_prefix()}\n\n{observation}",
                "seed": 100 + number,
                "state": env.get_state_description(),
                "expected_action": env.expert_action(),
            }

    def test_an_instance_stays_as_it_is(self):
        env = GuessNumberEnvironment({"high": 8})
        env.seed(1)
        env.reset()
        env.step("3")
        before = env.get_state_description()
        dataset = CustomEnvDataset(env, tokenizer=tokenizer())
        assert len(dataset) == 1000
        item = dataset[0]
        assert item["input_ids"] == tokenizer()(item["prompt"])["input_ids"]
        assert env.get_state_description() == before
        configured = CustomEnvDataset("guess-number", config={"high": 8})
        assert configured[0]["prompt"] == item["prompt"]

    def test_what_it_opens_it_closes_and_async_ones_open_too(self):
        closed = []

        class Opened(GuessNumberEnvironment):
            async def reset(self):
                return super().reset()

            def expert_action(self):
                return None

            def close(self):
                closed.append(self)

        dataset = CustomEnvDataset(Opened, size=2)
        closed.clear()
        assert "expected_action" not in dataset[1]
        assert len(closed) == 1


@pytest.mark.parametrize(
    "dataset",
    [
        PromptDataset(["a", {"prompt": MESSAGES}], tokenizer()),
        CustomEnvDataset(GuessNumberEnvironment, size=2),
        CustomEnvDataset("grid-world", size=2, tokenizer=tokenizer()),
    ],
    ids=["list", "class", "name"],
)
def test_a_dataset_can_go_to_another_process(dataset):
    items = list(dataset)
    assert list(pickle.loads(pickle.dumps(dataset))) == items
