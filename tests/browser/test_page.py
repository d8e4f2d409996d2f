"""The page around the views: keys, dark and light, links, what is said when something is wrong."""

import re

from playwright.sync_api import expect


def theme(visitor):
    return visitor.page.evaluate("document.documentElement.dataset.theme")


def test_keys_choose_the_view_and_keep_the_episode(visitor):
    visitor.open("run/tools/episodes/train-2-1")
    expect(visitor.at(".conversation-head h1")).to_have_text("train-2-1")
    visitor.press("3")
    expect(visitor.page).to_have_url(re.compile("tokens/train-2-1"))
    visitor.press("4")
    expect(visitor.page).to_have_url(re.compile("time/2"))
    visitor.press("1")
    expect(visitor.page).to_have_url(re.compile("tools/learn"))
    visitor.press("2")
    expect(visitor.at(".conversation-head h1")).to_have_text("train-2-1")


def test_help_opens_and_closes(visitor):
    visitor.open("run/tools/learn")
    expect(visitor.at(".tabs a")).to_have_count(5)
    visitor.press("?")
    expect(visitor.at("dialog.help")).to_be_visible()
    visitor.press("Escape")
    expect(visitor.at("dialog.help")).to_be_hidden()


def test_dark_and_light_are_chosen_and_remembered(visitor):
    visitor.open("run/tools/learn")
    expect(visitor.at(".chart").first).to_be_visible()
    assert theme(visitor) == "light"
    light = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    visitor.page.get_by_label("Switch between dark and light").click()
    assert theme(visitor) == "dark"
    assert visitor.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    visitor.page.reload()
    expect(visitor.at(".chart").first).to_be_visible()
    assert theme(visitor) == "dark"
    visitor.press("t")
    assert theme(visitor) == "light"


def test_a_run_is_chosen_from_the_menu(visitor):
    visitor.open("run/tools/episodes")
    visitor.at(".run-choice > button").click()
    expect(visitor.at(".menu a:not(.menu-all)")).to_have_count(5)
    visitor.at(".menu a", has_text="real").click()
    expect(visitor.page).to_have_url(re.compile("run/real/episodes"))


def test_what_is_not_there_is_said_in_words(visitor):
    visitor.expected = ("404",)
    visitor.open("run/gone/learn")
    expect(visitor.at(".state.is-error")).to_contain_text('no run "gone"')
    visitor.open("run/tools/episodes/train-9-9")
    expect(visitor.at(".conversation-pane .is-error")).to_contain_text("step 9")
    visitor.open("run/tools/tokens/train-1-77")
    expect(visitor.at(".is-error")).to_contain_text("77")
    visitor.open("run/tools/time/55")
    expect(visitor.at(".is-error")).to_contain_text("55")


def test_a_wrong_filter_is_told(visitor):
    visitor.expected = ("400",)
    visitor.open("run/tools/episodes?min_turns=many")
    expect(visitor.at(".list .is-error")).to_contain_text("expected a number")


def test_everything_comes_from_the_viewer(visitor):
    asked = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.open("run/real/learn")
    expect(visitor.at("[data-metric=reward] canvas")).to_be_visible()
    assert any(url.endswith("/assets/vendor/uplot.min.js") for url in asked)
    assert all(url.startswith(visitor.root) for url in asked if url != "about:blank")
