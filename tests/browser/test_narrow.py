"""On a telephone: nothing overlaps, nothing is cut, nothing is wider than the window."""

import pytest
from playwright.sync_api import expect

from browser.browsing import Visitor
from browser.test_tasks import WHY, broken, sums
from view.runs_to_view import said, write_run
from view.serving import serving

PHONE = {"width": 390, "height": 800}
LONG = "a-run-with-a-name-that-somebody-took-a-long-time-to-think-of"

# Where an element or a text can be seen: what its ancestors cut off is not, unless one can scroll
# to it, or the end of the text is shown as "…".
MEASURE = """() => {
  const problems = [];
  const say = (what, element) =>
    problems.push(`${what}: <${element.tagName.toLowerCase()} class="${element.className}"> ` +
      (element.textContent || element.value || "").trim().slice(0, 60));
  const scrolls = (style) => ["auto", "scroll"].includes(style.overflowX);
  const clipped = (element, box) => {
    let { left, right, top, bottom } = box;
    let cut = null;
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (style.overflowX === "visible") continue;
      const edge = one.getBoundingClientRect();
      const isFine = scrolls(style) || style.textOverflow === "ellipsis";
      if (!cut && !isFine && (right > edge.right + 1.5 || left < edge.left - 1.5)) cut = one;
      left = Math.max(left, edge.left);
      right = Math.min(right, edge.right);
      top = Math.max(top, edge.top);
      bottom = Math.min(bottom, edge.bottom);
      if (isFine && cut === null && right - left < 1) break;
    }
    return { left, right, top, bottom, cut };
  };
  const isSeen = (box) =>
    box.right - box.left > 1 && box.bottom - box.top > 1 && box.top < innerHeight && box.bottom > 0;

  if (document.documentElement.scrollWidth > innerWidth)
    problems.push(`the page is ${document.documentElement.scrollWidth} wide`);

  const known = [];
  for (const one of document.querySelectorAll("a, button, select, input, summary, circle")) {
    if (!one.checkVisibility({ visibilityProperty: true }) || one.matches(".skip")) continue;
    const box = clipped(one, one.getBoundingClientRect());
    if (!isSeen(box)) continue;
    if (box.cut) say("cut", one);
    if (box.right > innerWidth + 1) say("outside", one);
    known.push([one, box]);
  }
  known.forEach(([one, a], place) => {
    for (const [other, b] of known.slice(place + 1)) {
      if (one.contains(other) || other.contains(one) || one.tagName === "circle") continue;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 2) say(`overlaps ${other.className || other.tagName}`, one);
    }
  });

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    const parent = text.parentElement;
    if (!text.data.trim() || parent.closest("option, script, noscript, svg, .skip")) continue;
    if (!parent.checkVisibility({ visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const box = range.getBoundingClientRect();
    const seen = clipped(parent, box);
    if (isSeen(seen) && seen.cut) say(`text cut by .${seen.cut.className}`, parent);
    const all = seen.cut === null && box.right > innerWidth + 1 && seen.right > innerWidth + 1;
    if (all) say("text outside", parent);
  }
  return problems;
}"""


@pytest.fixture(scope="module")
def visitor(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    steps = {step: sums(step) for step in (1, 2, 3)}
    word = "an-answer-without-a-single-space-" * 8
    steps[3].append(said(word, asked=word, told=word, tools=["a_tool_with_a_long_name"], part=LONG))
    write_run(folder / "sums", steps, metrics={"entropy": 1.0, "grad_norm": 2.0})
    write_run(folder / LONG, {1: [broken(n) for n in range(4)]}, status=WHY)
    with serving(folder) as client:
        context = browser.new_context(viewport=PHONE)
        visitor = Visitor(context, client.port)
        yield visitor
        visitor.check()
        context.close()


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("runs", "main h1, main table, main .row, main a"),
        ("run/sums/learn", ".chart canvas"),
        (f"run/sums/learn?with={LONG}&step=2", ".chart canvas"),
        (f"run/{LONG}/learn", ".failure .button"),
        ("run/sums/episodes", ".list .row"),
        ("run/sums/episodes?text=plus&in=task&success=no&min_step=1", ".list .row"),
        ("run/sums/episodes?text=nothing", ".list .state"),
        ("run/sums/episodes/train-3-1", ".conversation .turn"),
        ("run/sums/episodes/train-3-2", ".conversation .turn"),
        (f"run/{LONG}/episodes/train-1-0", ".problem"),
        ("run/sums/tokens/train-3-1", ".stream .tok"),
        ("run/sums/time/3", ".shares"),
    ],
)
def test_a_page_fits(visitor, place, there):
    visitor.open(place)
    expect(visitor.at(there).first).to_be_visible()
    visitor.page.wait_for_timeout(300)  # for fonts and charts to have their sizes
    assert visitor.page.evaluate(MEASURE) == []


def test_one_task_and_the_menus_fit(visitor):
    visitor.open("run/sums/episodes/train-3-1")
    visitor.at("[data-action=task]").click()
    expect(visitor.at(".task-curve")).to_be_visible()
    assert visitor.page.evaluate(MEASURE) == []
    visitor.press("?")
    expect(visitor.at("dialog.help")).to_be_visible()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
