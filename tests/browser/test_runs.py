"""Which runs are there, how do they differ? The table of runs, notes on them, and comparison."""

import json
import re

import pytest
from playwright.sync_api import expect

from browser.browsing import LAPTOP, Visitor
from browser.several_runs import make_all
from turnwise.runs.headline import headline
from view.serving import open_library, serving

KINDS = ("greedy", "sampled")
# What charts write, as they write it: where each label ends, and how wide the canvas is.
WATCH_LABELS = """
window.labels = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
  const width = this.measureText(text).width;
  const end = this.textAlign === "center" ? x + width / 2 : x;
  labels.push([text, end - width, end, this.canvas.width]);
  return draw.call(this, text, x, ...rest);
};
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    make_all(folder)
    return folder


@pytest.fixture(scope="module")
def several(folder):
    with serving(folder) as client:
        yield client


@pytest.fixture
def visitor(browser, several):
    context = browser.new_context(viewport=LAPTOP)
    context.add_init_script(WATCH_LABELS)
    visitor = Visitor(context, several.port)
    yield visitor
    visitor.check()
    context.close()


def names(visitor):
    return visitor.at(".runs-table tbody .cell-name a")


def test_runs_are_sorted_and_filtered_and_the_address_keeps_it(visitor):
    visitor.open("runs")
    expect(names(visitor)).to_have_count(5)  # one is archived
    visitor.at("[data-name='sort reward']").click()
    expect(names(visitor)).to_have_text(["changed", "long", "larger", "plain", "damaged"])
    visitor.at("[data-name='sort reward']").click()
    expect(names(visitor)).to_have_text(["damaged", "plain", "larger", "long", "changed"])
    visitor.at("[data-name='sort success']").click()
    expect(visitor.page).to_have_url(re.compile("sort=-success"))
    expect(names(visitor).nth(4)).to_have_text(
        re.compile("long|damaged")
    )  # those without come last
    visitor.at("[data-name='sort name']").click()
    expect(names(visitor)).to_have_text(["changed", "damaged", "larger", "long", "plain"])
    visitor.page.reload()
    expect(names(visitor)).to_have_text(["changed", "damaged", "larger", "long", "plain"])
    expect(visitor.at("th[aria-sort=ascending]")).to_have_text("Run")

    visitor.at(".runs-tags .tag", has_text="sweep").click()
    expect(names(visitor)).to_have_text(["changed", "larger"])
    visitor.press("/")
    expect(visitor.at(".runs-search")).to_be_focused()
    visitor.page.keyboard.type("green large")
    expect(names(visitor)).to_have_text(["larger"])
    expect(visitor.at(".runs-count")).to_have_text("1 of 5 runs")
    visitor.page.keyboard.type("nowhere")
    expect(visitor.at(".state")).to_contain_text("No runs match these filters")
    visitor.page.get_by_role("button", name="Clear the filters").click()
    expect(names(visitor)).to_have_count(5)
    visitor.page.set_viewport_size({"width": 800, "height": 280})
    box = visitor.page.get_by_label("Choose damaged")
    # In one step of the page, which may draw the table anew at any time.
    box.evaluate("box => box.scrollIntoViewIfNeeded()")
    visitor.page.mouse.move(300, 250)
    visitor.page.mouse.wheel(0, 60)
    expect(visitor.at(".runs-table")).to_have_js_property("scrollTop", 60)
    box.focus()
    visitor.press("Space")  # draws the table anew, which neither jumps nor loses the focus
    expect(visitor.page).to_have_url(re.compile("runs=damaged"))
    expect(box).to_be_focused()
    assert visitor.page.evaluate("document.querySelector('.runs-table').scrollTop") == 60
    visitor.page.get_by_label("Show archived (1)").check()
    expect(visitor.at("tr[data-run=mixed] .chip", has_text="archived")).to_be_visible()


def test_notes_are_written_on_a_run_and_it_is_archived(visitor, folder):
    visitor.expected = ("PATCH", "status of 400")
    visitor.open("runs?sort=name")
    visitor.page.get_by_label("Edit tags and note of larger").click()
    visitor.page.get_by_label("Tags, separated by commas").fill("sweep, <b>bold</b>")
    visitor.page.get_by_label("Note", exact=True).fill("Larger rooms.\n\u202eturned")
    visitor.page.get_by_role("button", name="Save").click()
    row = visitor.at("tr[data-run=larger]")
    expect(row.locator(".tag")).to_have_text(["sweep", "<b>bold</b>"])
    expect(row.locator(".note-text")).to_contain_text("Larger rooms.")
    expect(row.locator(".odd")).to_have_text("RLO")
    written = json.loads((folder / "larger" / "notes.json").read_text())
    assert written["tags"] == ["sweep", "<b>bold</b>"]
    assert not written["archived"]
    row.locator("a").click()
    expect(visitor.at(".run-notes")).to_contain_text("Larger rooms.")

    visitor.open("runs?sort=name")
    visitor.page.get_by_label("Choose larger").check()
    visitor.page.get_by_role("button", name="Archive").click()
    expect(visitor.at("tr[data-run=larger]")).to_have_count(0)
    assert json.loads((folder / "larger" / "notes.json").read_text())["archived"]
    visitor.open("run/plain/learn")
    expect(visitor.at("[data-run=plain]")).to_be_visible()
    expect(visitor.at("[data-run=larger], [data-run=mixed]")).to_have_count(0)
    visitor.at(".run-choice > button").click()
    expect(visitor.at(".menu a", has_text="larger")).to_have_count(0)
    visitor.open("runs?sort=name&archived=1")
    visitor.page.get_by_label("Choose larger").check()
    visitor.page.get_by_role("button", name="Unarchive").click()
    visitor.open("run/plain/learn")
    expect(visitor.at("[data-run=larger]")).to_be_visible()

    visitor.open("runs")
    visitor.page.get_by_label("Edit tags and note of damaged").click()
    visitor.page.get_by_label("Note", exact=True).fill("kept in the field")
    visitor.page.get_by_role("button", name="Save").click()
    expect(visitor.at(".dialog-problem")).to_contain_text("expected tags: a list")
    expect(visitor.page.get_by_label("Note", exact=True)).to_have_value("kept in the field")


def test_what_cannot_be_read_of_a_run_is_said_wherever_it_is_listed(visitor):
    visitor.open("runs")
    row = visitor.at("tr[data-run=damaged]")
    expect(row.locator(".chip.is-warn")).to_have_text("partly unreadable")
    assert "this is no line" in row.locator(".chip.is-warn").get_attribute("title")
    row.locator("a").click()
    note = visitor.at(".problem")
    expect(note).to_contain_text("Some files of this run cannot be read.")
    expect(note).to_contain_text("metrics.jsonl, line 2")
    expect(note).to_contain_text("expected tags: a list")
    expect(visitor.at("[data-metric=reward] canvas")).to_have_count(1)  # the rest is there
    visitor.at(".run-choice > button").click()
    expect(visitor.at(".menu a", has_text="damaged")).to_contain_text("partly unreadable")
    expect(visitor.at(".menu a", has_text="plain")).not_to_contain_text("unreadable")


def test_chosen_runs_are_compared_side_by_side(visitor):
    visitor.open("runs")
    for run in ("plain", "changed", "larger"):
        visitor.page.get_by_label(f"Choose {run}").check()
    visitor.page.get_by_role("link", name="Compare 3 runs").click()
    expect(visitor.page).to_have_url(re.compile("run/plain/learn.with=changed,larger"))
    expect(visitor.at("[data-setting]")).to_have_count(3)  # only what differs
    code = visitor.at("[data-setting=reward][data-group=code]")
    expect(code).to_contain_text("changed code")
    expect(code.locator("td")).to_have_text(["aaaaaaaa", "bbbbbbbb", "aaaaaaaa"])
    rate = visitor.at("[data-setting='training.learning_rate'] td")
    expect(rate).to_have_text(["0.001", "0.004", "0.002"])
    expect(visitor.at("[data-setting='environment.params.size'] td")).to_have_text(["3", "3", "5"])
    result = "success 1.000after step 20: greedy episodes on what the run evaluates on"
    expect(visitor.at("[data-result=headline] td")).to_have_text([result] * 3)
    visitor.page.get_by_role("button", name=re.compile("All .* settings")).click()
    tools = visitor.at("[data-setting=tools][data-group=setting]")
    expect(tools.locator("td").first).to_have_text('["calculator"]')
    visitor.page.reload()
    expect(visitor.at("[data-setting='training.batch_size'] td").first).to_have_text("8")
    visitor.page.get_by_label("Compare without larger").click()
    expect(visitor.at(".learn-head h1")).to_have_text("Comparing 2 runs")
    expect(visitor.at("[data-setting='environment.params.size'].is-same")).to_have_count(1)


def test_the_legend_hides_runs_and_kinds_of_curves(visitor):
    visitor.open("run/plain/learn?with=changed")
    values = visitor.at("[data-metric=reward] .chart-values span")
    expect(visitor.at(".legend-run")).to_have_text(["plain", "changed"])
    kinds = ["training", "greedy evaluation", "sampled evaluation"]
    expect(visitor.at(".legend-kind")).to_have_text(kinds)
    colors = [one.get_attribute("stroke") for one in visitor.at(".legend-run path").all()]
    assert len(set(colors)) == 2
    dashes = [
        one.get_attribute("stroke-dasharray") for one in visitor.at(".legend-kind path").all()
    ]
    assert len(set(dashes)) == 3
    expect(values).to_have_text(["0.2", "0.8"])
    visitor.at(".legend-run", has_text="plain").click()
    expect(visitor.page).to_have_url(re.compile("hide_runs=plain"))
    # The only run that is left shows its evaluations, too.
    expect(values).to_have_text(["0.8", "0.5", "0.25"])
    visitor.at(".legend-kind", has_text="greedy").click()
    expect(values).to_have_text(["0.8", "0.25"])
    visitor.page.reload()
    expect(values).to_have_text(["0.8", "0.25"])
    expect(visitor.at(".legend-item[aria-pressed=false]")).to_have_text(["plain", kinds[1]])
    visitor.at(".legend-kind", has_text="training").click()
    expect(values).to_have_text(["0.25"])
    visitor.at(".legend-run", has_text="changed").click()  # nothing is left, and nothing breaks
    expect(values).to_have_count(0)
    visitor.at(".legend-run", has_text="plain").click()
    expect(values).to_have_text(["0.25"])


def test_a_real_run_with_a_mix_of_environments(visitor, folder):
    """Curves, evaluation, headline and filter of each environment are those of the run's files."""
    *_, last = map(json.loads, (folder / "mixed" / "metrics.jsonl").read_text().splitlines())
    visitor.open("run/mixed/learn")
    for name in ("memory", "echo"):
        group = visitor.at(".group", has_text=f"How does it do in {name}?")
        for metric in ("reward", "turns"):
            names = [f"{name}/{metric}", *(f"eval/{name}/{k}/{metric}" for k in KINDS)]
            shown = group.locator(f"[data-metric='{name}/{metric}'] .chart-values span")
            expect(shown).to_have_count(3)  # training, greedy and sampled evaluation
            values = [float(text) for text in shown.all_text_contents()]
            assert values == pytest.approx([last[name] for name in names], abs=5e-4)
        expect(visitor.at(f"[data-metric='eval/{name}/greedy/reward']")).to_have_count(0)
    main = headline([last], "held-out seeds")
    tile = " ".join(visitor.at("[data-tile=headline]").inner_text().split())
    assert tile == str(main)
    best = visitor.at("[data-tile=best-checkpoint]")
    expect(best).to_contain_text("the best by eval/greedy/reward")

    visitor.open("run/mixed/episodes")
    counts = open_library(folder / "mixed").runs[0].detail()["parts"]
    assert set(counts) == {"memory", "echo"}
    for name, number in counts.items():
        visitor.page.get_by_label("environment").select_option(name)
        expect(visitor.page).to_have_url(re.compile(f"part={name}"))
        expect(visitor.at(".list-count")).to_contain_text(f"{number} episodes")
    expect(visitor.at(".conversation-pane")).to_contain_text("reward")


def test_the_axes_are_chosen_and_no_label_is_cut(visitor):
    visitor.open("run/long/learn")
    expect(visitor.at("[data-metric=reward] canvas")).to_be_visible()
    assert "1,000" in {text for text, *_ in visitor.page.evaluate("labels")}
    assert_labels_are_whole(visitor)
    visitor.open("run/plain/learn")
    over = visitor.at("[data-metric=reward] .u-over")
    expect(visitor.at("[data-metric=kl]")).to_have_count(0)  # one optimiser step a batch
    # Eight steps of a minute each and an evaluation of five seconds; of other axes, eight parts.
    places = {"time": "8:05 min", "tokens": "8,000 sampled tokens", "episodes": "32 episodes"}
    for axis, text in places.items():
        visitor.page.get_by_label("x axis").select_option(axis)
        expect(visitor.page).to_have_url(re.compile(f"axis={axis}"))
        over.click(position={"x": over.bounding_box()["width"] * 7 / 19, "y": 20})
        expect(visitor.page).to_have_url(re.compile("step=8"))
        expect(visitor.at(".at-step")).to_have_text(f"at {text}")
        visitor.press("Escape")
        expect(visitor.page).not_to_have_url(re.compile("step="))
    visitor.open("run/plain/learn?with=changed,larger&axis=episodes")
    expect(visitor.page.get_by_label("x axis")).to_have_value("episodes")
    expect(visitor.at("[data-metric=kl] canvas")).to_have_count(1)  # larger has four steps a batch
    expect(visitor.at(".legend-note")).to_contain_text("num_episodes was not recorded: larger")

    visitor.page.get_by_label("Log y").check()
    expect(visitor.page).to_have_url(re.compile("y=log"))
    norm = visitor.at("[data-metric=grad_norm]")
    expect(norm.locator(".chart-scale")).to_have_text("log")
    expect(norm.locator(".chart-zeros")).to_have_text("2 zeros not drawn")  # of two runs
    assert any(re.fullmatch(r"1e−\d+", text) for text, *_ in visitor.page.evaluate("labels"))
    visitor.page.get_by_role("button", name=re.compile("more curve")).click()
    expect(visitor.at("[data-metric=advantage_mean] .chart-scale")).to_have_text("")
    assert_labels_are_whole(visitor)


def assert_labels_are_whole(visitor):
    cut = [
        text
        for text, start, end, width in visitor.page.evaluate("labels")
        if end > width + 0.5 or start < -0.5
    ]
    assert not cut


def test_an_asynchronous_run_shows_how_old_its_samples_are_and_what_waits(visitor):
    visitor.open("run/larger/learn")
    chart = visitor.at("[data-metric='staleness']")
    expect(chart.locator("canvas")).to_have_count(1)
    expect(chart.locator(".chart-values span")).to_have_text(["1 behind 50%", "0 behind 30%"])
    expect(visitor.at("[data-metric='idle/learner'] .chart-values")).to_have_text("25%")
    visitor.open("run/larger/learn?step=1")  # nothing was behind
    expect(chart.locator(".chart-values span").first).to_have_text("0 behind 100%")
