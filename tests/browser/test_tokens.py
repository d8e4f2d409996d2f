"""What was trained on? Every token, its mask, its numbers."""

import re

import pytest
from playwright.sync_api import expect

from browser.conftest import NUM_LONG


@pytest.fixture
def stream(viewer):
    return viewer.get("/api/runs/real/episodes/train-2-0/tokens")


def facts(visitor):
    return visitor.at(".token-facts")


def fact(visitor, name):
    row = visitor.at(".fact", has=visitor.page.locator(f"dt:text-is('{name}')"))
    return row.locator("dd")


def test_every_token_is_there_with_its_mask(visitor, stream):
    visitor.open("run/real/tokens/train-2-0")
    expect(visitor.at(".stream .tok")).to_have_count(stream["count"])
    expect(visitor.at(".stream .tok.s")).to_have_count(sum(stream["mask"]))
    masks = visitor.page.evaluate(
        "[...document.querySelectorAll('.stream .tok')].map((t) => +t.classList.contains('s'))"
    )
    assert masks == stream["mask"]
    expect(visitor.at(".checks .is-ill")).to_have_count(0)
    expect(visitor.at(".checks .is-well")).not_to_have_count(0)


def test_the_text_of_the_stream_can_be_read(visitor, stream):
    visitor.open("run/real/tokens/train-2-0")
    expect(visitor.at(".stream .tok").first).to_be_visible()
    shown = visitor.at(".stream .flow").all_text_contents()
    text = "".join(stream["tokens"]).replace(" ", "·").replace("\n", "↵")
    assert "".join(shown) == text


def test_hover_shows_the_numbers_of_a_token(visitor, stream):
    place = stream["mask"].index(1) + 1
    visitor.open("run/real/tokens/train-2-0")
    visitor.at(".stream .tok").nth(place).hover()
    expect(facts(visitor)).to_have_attribute("data-token", str(place))
    expect(fact(visitor, "id")).to_have_text(str(stream["ids"][place]))
    expect(fact(visitor, "mask")).to_have_text("1, trained on")
    shown = fact(visitor, "log-prob, sampler").inner_text().replace("−", "-")
    assert float(shown) == pytest.approx(stream["columns"]["sampler_log_probs"][place], rel=1e-3)
    advantage = fact(visitor, "advantage").inner_text().replace("−", "-")
    assert float(advantage) == pytest.approx(stream["columns"]["advantages"][place], rel=1e-3)
    visitor.at(".stream .tok").first.hover()
    expect(fact(visitor, "mask")).to_have_text("0, not trained on")
    expect(fact(visitor, "advantage")).to_have_text("–")


def test_arrow_keys_go_from_token_to_token_and_the_address_knows(visitor, stream):
    first = stream["mask"].index(1)
    visitor.open("run/real/tokens/train-2-0")
    expect(facts(visitor)).to_have_attribute("data-token", str(first))
    visitor.press("ArrowRight", "ArrowRight", "ArrowLeft")
    expect(facts(visitor)).to_have_attribute("data-token", str(first + 1))
    expect(visitor.page).to_have_url(re.compile(f"token={first + 1}"))
    visitor.page.reload()
    expect(facts(visitor)).to_have_attribute("data-token", str(first + 1))
    visitor.press("]")
    second_turn = stream["turn"].index(1)
    expect(facts(visitor)).to_have_attribute("data-token", str(second_turn))
    visitor.press("ArrowUp")
    expect(facts(visitor)).not_to_have_attribute("data-token", str(second_turn))


def test_the_colour_follows_the_column(visitor):
    visitor.open("run/long/tokens/train-1-0")
    tokens = visitor.at(".stream .tok.s")
    expect(tokens.first).to_have_class(re.compile(r"is-minus l10\b"))
    expect(tokens.last).to_have_class(re.compile(r"is-plus l10\b"))
    visitor.at("[data-color=gap]").click()
    expect(visitor.page).to_have_url(re.compile("color=gap"))
    # -0.75 by the learner, -0.5 by the sampler
    expect(tokens.first).to_have_class(re.compile(r"is-minus l10\b"))
    expect(tokens.last).to_have_class(re.compile(r"is-minus l10\b"))
    expect(visitor.at(".checks .is-ill")).to_contain_text("differ by at most 0.25")
    visitor.at("[data-color=mask]").click()
    expect(tokens.first).not_to_have_class(re.compile(r"is-minus l10\b"))
    visitor.press("c")
    expect(visitor.page).to_have_url(re.compile("color=advantages"))


def test_ten_thousand_tokens(visitor):
    visitor.open("run/long/tokens/train-1-0")
    expect(visitor.at(".stream .tok.s")).to_have_count(NUM_LONG)
    visitor.press("End")
    expect(visitor.at(".stream .tok.is-here")).to_be_in_viewport()
    visitor.press("Home")
    expect(visitor.at(".stream .tok.is-here")).to_be_in_viewport()
    visitor.at(".overview").click(position={"x": 500, "y": 15})
    expect(visitor.at(".stream .tok.is-here")).to_be_in_viewport()
