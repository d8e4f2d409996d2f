"""A model's words are only ever words, wherever the page shows them."""

import pytest
from playwright.sync_api import expect

from browser.hostile import SCRIPTS, UNSEEN

NUM = len(SCRIPTS) + len(UNSEEN)


def assert_nothing_ran(visitor):
    assert visitor.page.evaluate("window.owned") is None
    made = "main script, main iframe, main style, main base, main form, main video, main math"
    assert visitor.page.locator(made).count() == 0
    assert visitor.page.locator("main img").count() == 0


@pytest.mark.parametrize("place", range(NUM + 2))
def test_nothing_runs_in_a_conversation_or_among_tokens(visitor, place):
    visitor.open(f"run/hostile/episodes/train-1-{place}")
    expect(visitor.at(".conversation-head h1")).to_have_text(f"train-1-{place}")
    if place < len(SCRIPTS):
        expect(visitor.at(".turn .words").first).to_have_text(SCRIPTS[place])
    for details in visitor.at("details").all():
        details.evaluate("(one) => { one.open = true; }")
    assert_nothing_ran(visitor)
    visitor.open(f"run/hostile/tokens/train-1-{place}")
    expect(visitor.at(".stream .tok").first).to_be_visible()
    assert_nothing_ran(visitor)


def test_nothing_runs_in_lists_searches_and_the_same_seed(visitor):
    visitor.open("run/hostile/episodes?text=onerror")
    expect(visitor.at(".row mark").first).to_have_text("onerror")
    assert_nothing_ran(visitor)
    visitor.open("run/hostile/episodes?tool=%3Cimg%20src%3Dx%20onerror%3D%22window.owned%20%3D%201")
    expect(visitor.at(".list-count")).to_contain_text("episode")
    assert_nothing_ran(visitor)
    visitor.open("run/hostile/task/seed-2?kind=train")
    expect(visitor.at(".seed-grid")).to_contain_text("onerror")
    assert_nothing_ran(visitor)


def test_the_address_cannot_write_into_the_page(visitor):
    visitor.expected = ("404", "400")
    for place in (
        "run/<img src=x onerror=window.owned=1>/learn",
        "run/hostile/<script>window.owned=1</script>",
        "run/hostile/constructor",
        "run/hostile/episodes/<img src=x onerror=window.owned=1>",
        "run/hostile/episodes?text=<img src=x onerror=window.owned=1>",
        "run/hostile/tokens/train-1-0?color=<script>&token=<b>&agent=javascript:1",
        "run/hostile/learn?x=<b>&smooth=<i>&with=__proto__,constructor&step=<b>",
        "run/hostile/learn?axis=<b>&y=<i>&hide=<b>&hide_runs=__proto__&x=9-1&settings=<b>",
        "runs?sort=<b>&q=<img src=x onerror=window.owned=1>&tag=<script>&runs=__proto__",
        "run/hostile/time/1?t=<b>&episode=<i>",
    ):
        visitor.open(place)
        expect(visitor.at("main > *").first).to_be_visible()
        assert_nothing_ran(visitor)


def test_what_cannot_be_seen_is_shown_by_name(visitor):
    boxes = {
        0: ["ESC[31m", "ESC[0m", "ESC]0;titleBEL", "ESC[2J"],
        1: ["RLO", "PDF", "LRI", "PDI", "RLM"],
        2: ["ZWSP", "BOM", "SHY", "LSEP"],
        3: ["NUL", "BEL", "BS", "DEL"],
        4: ["U+E0041", "U+E0042"],
    }
    for place, names in boxes.items():
        visitor.open(f"run/hostile/episodes/train-1-{len(SCRIPTS) + place}")
        expect(visitor.at(".turn .words").first.locator(".odd")).to_have_text(names)
