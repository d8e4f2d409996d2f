"""YAML that was made, or broken, so that reading it would take for ever or raise anything."""

from itertools import pairwise

import pytest

from turnwise import ConfigError, ConfigStore
from turnwise.yaml_files import MAX_BYTES, parse_value


def laughs(line):
    """Ten lines that stand for a billion values."""
    names = [f"a{number}" for number in range(10)]
    first = {"list": "[x, x, x, x]", "merge": "{k: 1}"}[line]
    lines = [f"a0: &a0 {first}"]
    for before, name in pairwise(names):
        ten = ", ".join([f"*{before}"] * 10)
        lines.append(f"{name}: &{name} " + (f"[{ten}]" if line == "list" else f"{{<<: [{ten}]}}"))
    return "\n".join(lines)


def chain(number):
    """Each value lies in the next: a few hundred lines that are nested as deeply."""
    return "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, number))])


HOSTILE = {
    laughs("list"): "line 6, column .*more than 100,000 values",
    laughs("merge"): "more than 100,000 values",
    chain(300): "nested more than 100 deep",
    "a: &a [*a]": "line 1, column 8: an alias stands inside of what it names",
    "a: &a {b: {c: *a}}": "an alias stands inside",
    "[" * 10_000: "nested more than 100 deep",
    "{a: " * 1_000: "nested more than 100 deep",
    "- " * 1_000: "nested more than 100 deep",
    "training: 2001-99-99": "a value cannot be read: month must be in 1..12",
    "training: ._": "a value cannot be read",
    "training: !!bool perhaps": "a value cannot be read",
    "training: !!timestamp now": "a value cannot be read",
    f"training: {'9' * 5000}": "a value cannot be read: Exceeds the limit",
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
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("model: {model_name: Größe}".encode("latin-1"))
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path, words in {
        large: "has 1,048,577 bytes, expected at most 1,048,576",
        latin: "not UTF-8.* Save the file as UTF-8",
        loop: "Too many levels of symbolic links",
        tmp_path: "is a folder, expected a file",
        tmp_path / "no\0name": "embedded null byte",
        latin / "below": "Not a directory",
        "/dev/null": "is a pipe or a device, expected a file",
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


@pytest.mark.parametrize("text", ["[" * 3000, "2001-99-99", "&a [*a]", "!!bool perhaps"])
def test_an_override_that_is_no_yaml_is_text(text):
    assert parse_value(text) == text
    with pytest.raises(ConfigError, match=r"training\.seed got"):
        ConfigStore.load(overrides=[f"training.seed={text}"])
