"""`environments:` in a file: a mix, its short forms, and what is refused."""

import pytest

from turnwise import ConfigError, ConfigStore

MIX = """
environments:
  - guess-number
  - {environment: "games.py:Maze", weight: 2, params: {size: 5}, dataset: rows.jsonl}
  - environment: games.py:Maze
    max_steps: 4
    tools: []
    reward: [{function: "games.py:solved", weight: 0.5}]
    eval_dataset: {path: data, split: test}
reward: games.py:all
tools: [calculator]
system_prompt: Play.
"""


def loaded(tmp_path, text, overrides=()):
    (tmp_path / "mix.yaml").write_text(text)
    return ConfigStore.load(tmp_path / "mix.yaml", overrides)


def test_a_mix_has_settings_for_each_part(tmp_path):
    parts = loaded(tmp_path, MIX).parts()
    assert list(parts) == ["guess-number", "Maze", "Maze-2"]
    guess, maze, other = parts.values()
    assert guess.environment.name == "guess-number"
    assert (guess.reward, guess.tools, guess.system_prompt) == (
        "games.py:all",
        ["calculator"],
        "Play.",
    )
    assert (maze.environment.params, maze.dataset.path) == ({"size": 5}, "rows.jsonl")
    assert (other.environment.max_steps, other.tools) == (4, [])
    assert other.reward[0].function == "games.py:solved"
    assert (other.eval_dataset.path, other.eval_dataset.split) == ("data", "test")
    assert all(part.environments is None for part in parts.values())


def test_what_is_saved_is_what_is_loaded_and_says_no_more_than_it_needs(tmp_path):
    config = loaded(tmp_path, MIX)
    config.save(tmp_path / "saved.yaml")
    assert ConfigStore.load(tmp_path / "saved.yaml") == config
    text = (tmp_path / "saved.yaml").read_text()
    assert "\nenvironment:" not in text
    assert "\ndataset:" not in text
    assert "prompt_key" not in text.partition("environments:")[2].partition("\nreward:")[0]


def test_without_a_mix_there_is_one_part():
    config = ConfigStore()
    assert config.parts() == {"": config}
    assert config.environment_name == "guess-number"


def test_a_run_of_many_parts_has_a_name_that_a_folder_can_have(tmp_path):
    many = "environments: [" + ", ".join(f"games.py:Game{n}" for n in range(9)) + "]"
    assert loaded(tmp_path, many).environment_name == "Game0+Game1+Game2+6-more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("environments: []", "environments got an empty list"),
        ("environments: [{weight: 2}]", r"environments.0.environment is missing"),
        ("environments: [{environment: a, weight: 0}]", r"environments.0.weight got 0"),
        ("environments: [{environment: a, weight: .nan}]", r"environments.0.weight got nan"),
        ("environments: [{environment: a, weight: .inf}]", r"environments.0.weight got inf"),
        ("environments: [{environment: a, wieght: 1}]", "Did you mean 'weight'"),
        ("environments: [{environment: a, dataset: {paht: b}}]", "dataset got {'paht'"),
        ("environments: guess-number", "environments got 'guess-number', expected a valid list"),
        (
            "environments: [{environment: a, name: x}, {environment: b, name: x}]",
            "two parts have the name 'x'",
        ),
        ("environments: [{environment: a, name: time}]", "'time' cannot stand in the metrics"),
        ("environments: [{environment: a, name: a b}]", "'a b' cannot stand in the metrics"),
        (
            "environment: {name: guess-number}\nenvironments: [guess-number]",
            "environment and environments are both given",
        ),
        ("environments: [a]\ndataset: rows.jsonl", "Write dataset into the part of the mix"),
    ],
)  # fmt: skip
def test_mixes_that_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)


def test_one_environment_of_a_mix_is_overridden_by_its_number(tmp_path):
    overrides = ["environments.0.weight=4", "environments.1.params.size=9"]
    config = loaded(tmp_path, MIX, overrides)
    assert [item.weight for item in config.environments] == [4.0, 2.0, 1.0]
    assert config.environments[1].params == {"size": 9}
    for wrong in ("environments.3.weight=1", "environments.maze.weight=1", "environments.0=a"):
        with pytest.raises(ConfigError, match="the file has 3 environments"):
            loaded(tmp_path, MIX, [wrong])
