"""How does it learn? Curves, runs laid over each other, what the doctor said."""

import re

from playwright.sync_api import expect


def test_curves_of_a_real_run_are_drawn(visitor):
    visitor.open("run/real/learn")
    expect(visitor.at("[data-metric=reward] canvas")).to_be_visible()
    for metric in ("success", "turns", "entropy", "gap_max", "clip_fraction", "time"):
        expect(visitor.at(f"[data-metric='{metric}'] canvas")).to_have_count(1)
    drawn = visitor.page.evaluate("""() => {
        const canvas = document.querySelector("[data-metric=reward] canvas");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        return data.some((value) => value > 0);
    }""")
    assert drawn


def test_without_an_address_the_newest_run_is_shown(visitor):
    visitor.open()
    expect(visitor.page).to_have_url(re.compile("#/run/[a-z]+/learn"))
    expect(visitor.at(".rail-run")).to_have_count(5)
    expect(visitor.at("[data-run=ill] .spark svg")).to_be_visible()


def test_runs_are_laid_over_each_other(visitor):
    visitor.open("run/real/learn")
    visitor.page.get_by_label("Show tools").check()
    expect(visitor.page).to_have_url(re.compile("with=tools"))
    expect(visitor.at(".legend-run")).to_have_text(["real", "tools"])
    expect(visitor.at("[data-metric=reward] .chart-values span")).to_have_count(2)
    visitor.page.reload()
    expect(visitor.at(".legend-run")).to_have_text(["real", "tools"])


def test_smoothing_is_in_the_address(visitor):
    visitor.open("run/ill/learn")
    slider = visitor.at("#smooth")
    slider.focus()
    visitor.press("ArrowRight", "ArrowRight")
    expect(visitor.page).to_have_url(re.compile(r"smooth=0\.1"))
    expect(visitor.at(".smooth output")).to_have_text("0.10")


def test_the_doctor_speaks_at_its_step_with_the_cure(visitor):
    visitor.open("run/ill/learn")
    first = visitor.at(".doctor li").first
    expect(first).to_contain_text("constant-reward")
    expect(first.locator(".fix")).to_contain_text("training.warm_start")
    first.locator("button").click()
    expect(visitor.page).to_have_url(re.compile(r"step=\d+"))
    expect(visitor.at(".pin-step")).to_contain_text("Step")


def test_a_step_is_chosen_in_a_curve_and_leads_to_its_episodes(visitor):
    visitor.open("run/tools/learn")
    over = visitor.at("[data-metric=reward] .u-over")
    box = over.bounding_box()
    over.click(position={"x": box["width"] / 2, "y": 20})
    expect(visitor.page).to_have_url(re.compile("step=2"))
    visitor.at(".pin a", has_text="Episodes").click()
    expect(visitor.page).to_have_url(re.compile("episodes.*step=2"))
    expect(visitor.at(".list-count")).to_contain_text("5 episodes")
    visitor.page.go_back()
    expect(visitor.at(".pin-step")).to_have_text("Step 2")


def test_dragging_looks_closer_and_escape_shows_all(visitor):
    visitor.open("run/ill/learn")
    box = visitor.at("[data-metric=reward] .u-over").bounding_box()
    mouse = visitor.page.mouse
    mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 30)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 30, steps=4)
    mouse.up()
    expect(visitor.page).to_have_url(re.compile(r"x=\d+-\d+"))
    visitor.press("Escape")
    expect(visitor.page).not_to_have_url(re.compile("x="))


def test_all_other_metrics_can_be_had(visitor):
    visitor.open("run/real/learn")
    before = visitor.at(".chart")
    expect(before.first).to_be_visible()
    number = before.count()
    visitor.page.get_by_role("button", name=re.compile("more curve")).click()
    expect(visitor.at("[data-metric=learning_rate] canvas")).to_have_count(1)
    assert visitor.at(".chart").count() > number
