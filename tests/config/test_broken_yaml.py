"""YAML that is broken, or holds what is no setting."""

import pytest

from turnwise import ConfigError, ConfigStore
from turnwise.yaml_files import parse_value

HOSTILE = {
    "training: 2001-99-99": "a value cannot be read: month must be in 1..12",
    "training: ._": "a value cannot be read",
    "training: !!bool perhaps": "a value cannot be read",
    "training: !!timestamp now": "a value cannot be read",
    "1: {}": "has a section 1, expected names such as 'training:'",
    "training: {1: 2}": "training.1 got",
    "training: \x00": "characters that are no text",
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_it_is_refused_at_once_with_the_file_and_the_reason(tmp_path, text, words):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        ConfigStore.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_no_configuration_file(tmp_path):
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("model: {model_name: Größe}".encode("latin-1"))
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path, words in {
        latin: "not UTF-8.* Save the file as UTF-8",
        loop: "Too many levels of symbolic links",
        tmp_path: "Is a directory",
        tmp_path / "no\0name": "embedded null byte",
    }.items():
        with pytest.raises(ConfigError, match=words):
            ConfigStore.load(path)


def test_an_alias_and_a_byte_order_mark_are_fine(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(
        b"\xef\xbb\xbf"
        b"training: {seed: &n 3}\nenvironment: {params: {a: &p {x: *n}, b: *p, c: {<<: *p}}}"
    )
    config = ConfigStore.load(path)
    assert config.training.seed == 3
    assert config.environment.params == {"a": {"x": 3}, "b": {"x": 3}, "c": {"x": 3}}


@pytest.mark.parametrize("text", ["[", "2001-99-99", "!!bool perhaps"])
def test_an_override_that_is_no_yaml_is_text(text):
    assert parse_value(text) == text
    with pytest.raises(ConfigError, match=r"training\.seed got"):
        ConfigStore.load(overrides=[f"training.seed={text}"])
