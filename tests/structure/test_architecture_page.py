"""docs/architecture.md names files that exist, and in each of its two walks at most a dozen."""

import re
from pathlib import Path

import turnwise
from every_case import every_case

SOURCE = Path(turnwise.__file__).parent
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
PLACES = {f"/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*")}
NAMED = re.findall(r"`((?:[a-z_0-9./]+/)?[a-z_0-9]+(?:\.py|/))`", PAGE)


@every_case("name", sorted(set(NAMED)))
def test_what_the_page_names_exists(name):
    """Names may be relative to the folder that the text is about."""
    end = f"/{name.removeprefix('../').rstrip('/')}"
    assert any(place.endswith(end) for place in PLACES)


@every_case("heading", ["What happens to a token", "What happens in a step"])
def test_a_walk_names_at_most_a_dozen_files_in_full(heading):
    walk = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_0-9/]+\.py)`", walk)
    assert 8 <= len(set(files)) <= 12
    assert all((SOURCE / file).is_file() for file in files)
