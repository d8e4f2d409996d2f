"""Settings: files, overrides, and errors that name the field, what it got and what it takes."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from turnwise import ConfigError, ConfigStore, EnvironmentConfig
from turnwise.config import RewardItem, setting_types

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def configs(draw):
    config = ConfigStore()
    config.model.model_name = draw(TEXT)
    config.model.local_path = draw(st.none() | TEXT)
    config.model.dtype = draw(st.sampled_from(["auto", "float32", "bfloat16", "float16"]))
    config.model.trust_remote_code = draw(st.booleans())
    config.inference.temperature = draw(st.floats(0, 1e6))
    config.inference.top_p = draw(st.floats(0, 1, exclude_min=True))
    config.inference.max_tokens = draw(st.integers(1, 10**9))
    config.training.learning_rate = draw(st.floats(0, 1e10, exclude_min=True, allow_subnormal=True))
    config.training.gamma = draw(st.floats(0, 1))
    config.training.seed = draw(st.integers(0, 2**63))
    config.environment.max_steps = draw(st.none() | st.integers(1, 10**6))
    config.environment.params = draw(st.dictionaries(TEXT, JSON_LIKE, max_size=4))
    config.checkpoint.output_dir = draw(TEXT)
    return config


@settings(deadline=None, max_examples=60)
@given(configs())
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    config.save(path)
    assert ConfigStore.load(path) == config


@pytest.mark.parametrize(
    "text", ["3e-5", "1e3", "1_000", ".5", "null", "no", "~", "0x1F", "", "ü 😀", "name \udc80"]
)
def test_every_text_stays_that_text_and_can_be_read(tmp_path, text):
    config = ConfigStore()
    config.environment.params = {"value": text}
    config.save(tmp_path / "c.yaml")
    assert ConfigStore.load(tmp_path / "c.yaml").environment.params == {"value": text}
    assert not text.isprintable() or text in (tmp_path / "c.yaml").read_text()


def test_the_defaults_are_valid_and_every_field_has_help():
    config = ConfigStore().validate()
    described = setting_types()
    assert list(described) == [name for name, _ in config.settings()]
    assert len(described) <= 135
    for name, (help_line, _) in described.items():
        assert help_line.endswith((".", "...")), name
        assert "\n" not in help_line


def test_settings_outside_the_sections_are_read_and_written(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(
        "dataset: rows.jsonl\n"
        "eval_dataset: {path: data, split: test, columns: {answer: solution}}\n"
        "tools: [calculator, {mcp: python server.py, prefix: web_}]\n"
        "parser: hermes\n"
        "reward: [{function: r.py:score, weight: 2}, {weight: 0.5}]\n"
        "limits: {step_timeout: 5, max_seconds: null}\n"
    )
    config = ConfigStore.load(file, ["system_prompt=7", "limits.max_turns=3"])
    assert config.dataset.path == "rows.jsonl"
    assert (config.eval_dataset.split, config.eval_dataset.columns) == (
        "test",
        {"answer": "solution"},
    )
    assert config.tools == ["calculator", {"mcp": "python server.py", "prefix": "web_"}]
    assert (config.parser, config.system_prompt) == ("hermes", "7")
    assert config.reward == [RewardItem("r.py:score", 2.0), RewardItem(None, 0.5)]
    assert (config.limits.step_timeout, config.limits.max_seconds, config.limits.max_turns) == (
        5.0,
        None,
        3,
    )
    config.save(tmp_path / "d.yaml")
    assert ConfigStore.load(tmp_path / "d.yaml") == config
    assert (
        ConfigStore.load(overrides=["dataset=a.jsonl", "reward=r.py:f"]).dataset.path == "a.jsonl"
    )


def test_the_fields_that_the_documents_name_exist():
    named = {
        "model": "model_name dtype device tensor_parallel_size local_path trust_remote_code",
        "inference": "backend max_tokens temperature top_p multi_turn max_turns",
        "training": "learning_rate gamma lam clip_ratio num_epochs batch_size adv_estimator "
        "use_kl_in_reward kl_coef",
        "checkpoint": "output_dir save_interval keep_last_n",
        "ray": "use_ray num_actors",
        "environment": "",
        "logging": "",
    }
    config = ConfigStore()
    for section, names in named.items():
        for name in names.split():
            assert hasattr(getattr(config, section), name)
    assert config.model.device == "auto"
    assert config.model.trust_remote_code is False


def test_overrides_reach_every_kind_of_value():
    config = ConfigStore.load(
        overrides=[
            "training.learning_rate=3e-5",
            "model.model_name=123",
            "model.local_path=null",
            "ray.use_ray=true",
            "environment.params.size=6",
            "environment.params.names=[a, b]",
            "dataset.path=[a.jsonl, b.jsonl]",
            "system_prompt=[be brief]",
        ]
    )
    assert config.dataset.path == ["a.jsonl", "b.jsonl"]
    assert config.system_prompt == "[be brief]"
    assert config.training.learning_rate == 3e-5
    assert config.model.model_name == "123"
    assert config.model.local_path is None
    assert config.ray.use_ray is True
    assert config.environment.params == {"size": 6, "names": ["a", "b"]}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learnin_rate=1", ["training.learnin_rate", "learning_rate"]),
        ("trainin.gamma=1", ["trainin", "training"]),
        ("training.learning_rate=fast", ["training.learning_rate", "'fast'", "number"]),
        ("training.learning_rate=-1", ["training.learning_rate", "-1", "a value greater than 0"]),
        ("model.dtype=fp32", ["model.dtype", "'fp32'", "'auto', 'float32'"]),
        ("training.batch_size=2.5", ["training.batch_size", "2.5", "a valid integer"]),
        (f"training.seed={2**63}", ["training.seed", str(2**63)]),
        ("training.zzz=1", ["Known: ", "`turnwise config` prints all"]),
        ("learning_rate=1", ["learning_rate=1", "section.name=value"]),
    ],
)
def test_a_bad_override_names_the_field_what_it_got_and_what_it_takes(override, words):
    with pytest.raises(ConfigError) as caught:
        ConfigStore.load(overrides=[override])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "3\n", "training: 5\n"])
def test_a_file_that_is_not_a_config_is_a_clear_error(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        ConfigStore.load(tmp_path / "c.yaml")


def test_an_empty_file_and_empty_sections_are_the_defaults(tmp_path):
    (tmp_path / "c.yaml").write_text("")
    assert ConfigStore.load(tmp_path / "c.yaml") == ConfigStore()
    (tmp_path / "c.yaml").write_text("training:\nmodel:\n")
    assert ConfigStore.load(tmp_path / "c.yaml") == ConfigStore()


def test_a_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "real.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"real\.yaml"):
        ConfigStore.load(tmp_path / "reel.yaml")


def test_a_misspelt_attribute_is_an_error_at_once():
    config = ConfigStore()
    with pytest.raises(ConfigError, match="learning_rate"):
        config.training.learnin_rate = 1e-5
    with pytest.raises(ConfigError, match="training"):
        config.trainin = None


def test_validate_turns_near_misses_into_the_right_type():
    config = ConfigStore()
    config.training.learning_rate = "3e-5"
    assert config.validate().training.learning_rate == 3e-5
    config.training.gamma = math.inf
    with pytest.raises(ConfigError, match=r"training\.gamma"):
        config.validate()


def test_a_failed_save_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "c.yaml"
    ConfigStore().save(path)
    before = path.read_text()
    config = ConfigStore()
    config.environment.params = {"bad": object()}
    with pytest.raises(Exception, match="object"):
        config.save(path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_config_path_and_config_name_as_the_guide_writes_them(tmp_path):
    (tmp_path / "test_config.yaml").write_text("training: {batch_size: 4}\n")
    arguments = [f"--config-path={tmp_path}", "--config-name=test_config", "training.gamma=0.5"]
    config = ConfigStore.from_args(arguments)
    assert (config.training.batch_size, config.training.gamma) == (4, 0.5)


def test_an_environment_reads_its_settings_from_a_dict_or_a_config():
    by_dict = EnvironmentConfig.of({"max_steps": 5, "size": 4})
    by_config = EnvironmentConfig(max_steps=5, params={"size": 4})
    assert by_dict == by_config
    assert by_dict.get("size", 9) == by_dict["size"] == 4
    assert by_dict.get("max_steps", 10) == 5
    assert EnvironmentConfig.of(None).get("max_steps", 10) == 10
    assert "size" in by_dict
    with pytest.raises(KeyError, match="size"):
        by_dict["sise"]
    with pytest.raises(ConfigError, match="dict"):
        EnvironmentConfig.of(3)
