"""Where did the time go? The timeline of a step."""

import re

from playwright.sync_api import expect


def test_the_timeline_of_a_step_is_drawn(visitor):
    visitor.open("run/tools/time/2")
    expect(visitor.at(".time-head h1")).to_have_text("Step 2")
    expect(visitor.at(".time-head")).to_contain_text("5 episodes")
    colors = visitor.page.wait_for_function("""() => {
        const canvas = document.querySelector(".timeline-canvas");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add(`${data[i]} ${data[i+1]} ${data[i+2]}`);
        return seen.size > 8 && seen.size;
    }""")
    assert colors.json_value() > 8


def test_a_real_step_has_shares(visitor):
    visitor.open("run/real/time")
    expect(visitor.page).to_have_url(re.compile("time/2"))
    expect(visitor.at(".share-key")).to_contain_text("generating")
    expect(visitor.at(".share-key")).to_contain_text("update")


def test_hover_names_the_span_and_a_click_opens_the_episode(visitor):
    visitor.open("run/tools/time/2")
    canvas = visitor.at(".timeline-canvas")
    expect(visitor.at(".time-head h1")).to_be_visible()
    canvas.hover(position={"x": 320, "y": 75})
    expect(visitor.at(".tip strong")).to_have_text(re.compile("train-2-"))
    name = visitor.at(".tip strong").inner_text()
    canvas.click(position={"x": 320, "y": 75})
    expect(visitor.page).to_have_url(re.compile(f"episodes/{name}$"))


def test_arrows_go_from_step_to_step_and_a_phase_can_be_looked_at(visitor):
    visitor.open("run/tools/time/2")
    title = visitor.at(".time-head h1")
    expect(title).to_have_text("Step 2")
    visitor.press("ArrowRight")
    expect(title).to_have_text("Step 3")
    visitor.press("ArrowLeft", "ArrowLeft")
    expect(title).to_have_text("Step 1")
    visitor.at(".timeline-canvas").click(position={"x": 300, "y": 40})
    expect(visitor.page).to_have_url(re.compile("t=0"))
    visitor.press("Escape")
    expect(visitor.page).not_to_have_url(re.compile("t=0"))
