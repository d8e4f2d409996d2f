"""Tasks, answers and success in the list of episodes; one task over training; a run that failed."""

import re

import pytest
from playwright.sync_api import expect

from browser.browsing import LAPTOP, Visitor
from trainer.worlds import Echo, small_trainer
from turnwise.errors import TrainingStopped
from turnwise.types import EpisodeStatus
from view.runs_to_view import SMALL, said, write_run
from view.serving import serving

WHY = (
    "stopped: every episode of the first step failed in the same way, so there is nothing to "
    "learn from.\nenvironment error: TypeError: cannot unpack None\n  plants.py:31 in step"
)


def sums(step):
    """Two rows that come again at every step with other seeds; the second is learned at step 3."""
    rows = [{"prompt": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in (3, 4)]
    answers = ["<think>3, 4, 5 ...</think>7", "8" if step == 3 else "9"]
    return [
        said(
            answer,
            seed=100 * step + n,
            asked=row["prompt"],
            task=row,
            told="Thank you.",
            success=answer == row["answer"],
            reward=float(answer == row["answer"]),
        )
        for n, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]


class Plants(Echo):
    """An environment with a mistake in it."""

    def step(self, action):
        level, reward = None
        return level, reward, True, {}


def broken(seed):
    status = EpisodeStatus.ENVIRONMENT_ERROR
    return said("water", seed=seed, status=status, error="TypeError: cannot unpack None")


@pytest.fixture
def visitor(browser, tmp_path):
    """One who started the viewer before there was anything to see."""
    with serving(tmp_path / "runs") as client:
        context = browser.new_context(viewport=LAPTOP)
        visitor = Visitor(context, client.port)
        visitor.open()
        yield visitor
        visitor.check()
        context.close()


def test_from_no_run_to_tasks_and_to_a_run_that_failed(visitor, tmp_path):
    waiting = visitor.at(".state")
    expect(waiting).to_contain_text(f"Waiting for the first run in {tmp_path / 'runs'}")
    expect(waiting.locator("code")).to_have_text("turnwise train")

    write_run(tmp_path / "runs" / "sums", {step: sums(step) for step in (1, 2, 3)})
    expect(visitor.at(".chart").first).to_be_visible()  # by itself
    look_at_the_list(visitor)
    look_at_the_table(visitor)
    look_at_one_task(visitor)

    settings = [one for one in SMALL if "run_name" not in one]
    with (
        pytest.raises(TrainingStopped),
        small_trainer(
            tmp_path / "runs", Plants, "checkpoint.run_name=plants", *settings
        ) as trainer,
    ):
        trainer.fit()
    look_at_a_failed_run(visitor)


def look_at_the_list(visitor):
    visitor.press("2")
    rows = visitor.at(".list .row")
    expect(rows).to_have_count(6)
    first = rows.first
    expect(first.locator(".row-task")).to_have_text("What is 3 plus 3?")
    expect(first.locator(".row-words")).to_have_text("7")  # without its thoughts
    expect(first.locator(".success")).to_have_attribute("aria-label", "no success")
    expect(visitor.at(".conversation-facts")).to_contain_text("successno")
    visitor.at("select[name=success]").select_option("yes")
    expect(rows).to_have_count(1)
    expect(visitor.at(".conversation-head h1")).to_have_text("train-3-1")
    expect(visitor.at(".task-row")).to_contain_text('"answer": "8"')
    visitor.page.get_by_role("button", name="clear all").click()
    visitor.at(".search").fill("4 plus")
    visitor.at("select[name=in]").select_option("answer")
    expect(visitor.at(".list .state")).to_have_text("No episodes match these filters.")
    visitor.at("select[name=in]").select_option("task")
    expect(rows).to_have_count(3)
    expect(rows.first.locator(".row-task mark")).to_have_text("4 plus")
    visitor.page.get_by_role("button", name="clear all").click()
    expect(rows).to_have_count(6)


def look_at_the_table(visitor):
    visitor.page.get_by_role("button", name="Table").click()
    expect(visitor.at(".conversation-pane")).to_be_hidden()
    heads = visitor.at(".table-head > *")
    expect(heads).to_contain_text(["step", "task", "answer", "success", "reward", "status"])
    lines = visitor.at(".list-space .row")
    edges = [
        [one.locator("> *").nth(place).bounding_box()["x"] for place in (1, 2, 3)]
        for one in (visitor.at(".table-head"), lines.first)
    ]
    assert edges[0][:2] == edges[1][:2]  # the heads stand over their columns
    visitor.page.get_by_role("button", name="success", exact=True).click()
    expect(visitor.page).to_have_url(re.compile("layout=table.*sort=-success"))
    expect(lines.first.locator(".success")).to_have_attribute("aria-label", "success")
    expect(lines.first).to_have_attribute("data-id", "train-3-1")
    lines.first.click()
    expect(visitor.at(".conversation-head h1")).to_have_text("train-3-1")


def look_at_one_task(visitor):
    visitor.press("s")
    expect(visitor.at(".task-words")).to_have_text("What is 4 plus 4?")
    expect(visitor.at(".conversation-title")).to_contain_text("3 episodes at 3 steps")
    curve = visitor.at(".task-curve svg")
    expect(curve).to_have_attribute("aria-label", re.compile("step 1: 0, step 3: 1"))
    expect(curve.locator("circle")).to_have_count(3)
    expect(visitor.at(".seed-top strong")).to_have_text(["step 1", "step 2", "step 3"])
    curve.locator("circle[data-id=train-2-1]").click()
    expect(visitor.at(".seed-top strong")).to_have_text(["step 1", "step 3"])


def look_at_a_failed_run(visitor):
    visitor.open("run/plants/learn")
    banner = visitor.at(".failure")
    expect(banner).to_contain_text("every episode of the first step failed in the same way")
    expect(banner.locator("pre")).to_be_hidden()
    banner.locator("summary").click()
    expect(banner.locator("pre")).to_contain_text("level, reward = None")
    expect(visitor.at(".live")).to_contain_text("stopped")
    expect(visitor.at(".live")).not_to_contain_text("every episode")
    banner.get_by_role("link", name="4 failed episodes").click()
    expect(visitor.page).to_have_url(re.compile(r"plants/episodes.*status=error"))
    expect(visitor.at(".list .row")).to_have_count(4)
    expect(visitor.at(".problem")).to_contain_text("cannot unpack non-iterable NoneType")
    visitor.open("run/sums/learn")
    expect(visitor.at(".chart").first).to_be_visible()
    expect(banner).to_be_hidden()
