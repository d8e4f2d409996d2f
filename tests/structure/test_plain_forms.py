"""The names of fast forms: each is chosen somewhere, and only known ones are asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import turnwise
from turnwise.errors import ConfigError
from turnwise.plain_mode import FORMS, is_plain, plain_mode

SOURCE = Path(turnwise.__file__).parent


def test_every_fast_form_is_chosen_by_its_name() -> None:
    asked = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'is_plain\("([\w.]+)"\)', path.read_text())
    }
    assert asked == FORMS.keys()


def test_one_form_alone_can_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNWISE_PLAIN", raising=False)
    with plain_mode(False), plain_mode(["algo.ppo"]):
        assert is_plain("algo.ppo")
        assert not is_plain("algo.tiles")
        with plain_mode():
            assert all(map(is_plain, FORMS))
    with pytest.raises(ConfigError, match=r"Did you mean 'algo\.ppo'\?"), plain_mode(["algo.pppo"]):
        pass
