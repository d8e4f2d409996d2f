"""One episode as a file of its own."""

from __future__ import annotations

from typing import Any

from turnwise.trainer.episode_records import StoredEpisode
from turnwise.view.token_texts import TokenTexts


def export_episode(
    run: str, payload: dict[str, Any], episode: StoredEpisode, texts: TokenTexts
) -> str:
    return ""
