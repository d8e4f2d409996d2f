"""A whole run as one page in a browser: offline, harmless, readable on a phone and on paper."""

import pytest

from browser.hostile import SCRIPTS
from turnwise.view.report import export_run
from view.serving import open_library

SIZES = ({"width": 1280, "height": 800}, {"width": 390, "height": 800})


@pytest.mark.parametrize("name", ["real", "hostile", "ill"])
def test_it_opens_offline_and_nothing_in_it_runs(browser, runs, tmp_path, name):
    file = tmp_path / "run.html"
    file.write_text(export_run(open_library(runs / name).get(name), 40))
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked, problems = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.goto(file.as_uri())
    for size in SIZES:
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.locator("script, iframe, img, video, form, base, link").count() == 0
    assert page.evaluate("window.owned") is None
    look_into[name](page)
    assert page.pdf()[:5] == b"%PDF-"
    assert (asked, problems) == ([file.as_uri()], [])
    context.close()


def look_into_a_real_one(page):
    curve = page.locator("figure", has_text="reward").first.locator("polyline.own")
    assert curve.bounding_box()["width"] > 100
    assert page.locator("h2").all_text_contents() == [
        *("Curves", "Findings", "Episodes", "Settings", "Provenance")
    ]
    link = page.locator("td a").first
    name = link.text_content()
    link.click()
    assert page.evaluate("location.hash") == f"#{name}"
    assert page.locator(f"[id={name}] h3").is_visible()


def look_into_a_hostile_one(page):
    words = page.locator(".words").all_text_contents()
    assert {SCRIPTS[0], SCRIPTS[2]} <= set(words)


def look_into_an_ill_one(page):
    assert page.locator("li", has_text="constant-reward").count() == 1


look_into = {
    "real": look_into_a_real_one,
    "hostile": look_into_a_hostile_one,
    "ill": look_into_an_ill_one,
}
