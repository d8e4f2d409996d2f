"""The page while a run is in progress, in a process of its own."""

import subprocess
import sys
import time

import pytest
from playwright.sync_api import expect

from browser.browsing import LAPTOP, Visitor
from trainer.worlds import training
from view.serving import serving

SETTINGS = [
    *training(
        "batch_size=4 mini_batch_size=4 update_epochs=1 warm_start_steps=1 steps_per_epoch=2 "
        "eval_episodes=2"
    ),
]


def start(folder, name, num_epochs):
    command = [sys.executable, "-m", "turnwise", "train", "--lines", "--output", str(folder)]
    command += ["--name", name, *SETTINGS, f"training.num_epochs={num_epochs}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(run):
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors.decode()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with one short run in it that is over."""
    folder = tmp_path_factory.mktemp("live")
    finish(start(folder, "first", 1))
    return folder


@pytest.fixture
def live(browser, begun):
    with serving(begun) as client:
        context = browser.new_context(viewport=LAPTOP)
        visitor = Visitor(context, client.port)
        visitor.folder = begun
        yield visitor
        visitor.check()
        context.close()


def test_a_run_appears_and_its_curves_grow_by_themselves(live):
    live.open("run/first/learn?step=1")
    expect(live.at(".rail-run")).to_have_count(1)
    run = start(live.folder, "second", 3)
    try:
        expect(live.at("[data-run=second]")).to_be_visible(timeout=240_000)
        live.at("[data-run=second] a").click()
        expect(live.at(".live")).to_contain_text("live", timeout=240_000)
        expect(live.at("[data-metric=reward] canvas")).to_be_visible(timeout=240_000)
        expect(live.at(".tiles")).to_contain_text("6 of 6", timeout=240_000)
    finally:
        finish(run)
    expect(live.at(".live")).to_contain_text("finished")


def test_new_episodes_move_neither_the_list_nor_the_choice(live):
    run = start(live.folder, "third", 60)
    try:
        # Found by the viewer as soon as its folder is there.
        end = time.monotonic() + 300
        while not list((live.folder / "third").glob("episodes/step-00000[3-9].parquet")):
            assert run.poll() is None, "the run ended by itself"
            assert time.monotonic() < end, "the run does not begin"
            time.sleep(0.1)
        live.open("run/third/episodes/train-1-2")
        expect(live.at(".conversation-head h1")).to_have_text("train-1-2")
        live.at(".list").evaluate("(list) => { list.scrollTop = 70; }")
        expect(live.at(".row").first).to_be_visible()
        text = live.at(".row").nth(2).get_attribute("data-id")
        expect(live.at(".fresh")).to_be_visible(timeout=240_000)
        assert live.at(".list").evaluate("(list) => list.scrollTop") == 70
        assert live.at(".row").nth(2).get_attribute("data-id") == text
        expect(live.at(".conversation-head h1")).to_have_text("train-1-2")
        live.at(".fresh").click()
        expect(live.at(".row").first).not_to_have_attribute("data-id", text)
        expect(live.at(".conversation-head h1")).to_have_text("train-1-2")
    finally:
        run.terminate()
        run.communicate(timeout=120)
    expect(live.at(".live")).to_contain_text("interrupted", timeout=60_000)


def test_a_viewer_that_ends_is_told(browser, begun):
    context = browser.new_context(viewport=LAPTOP)
    with serving(begun) as client:
        visitor = Visitor(context, client.port)
        visitor.open("run/first/learn")
        expect(visitor.at(".chart").first).to_be_visible()
    expect(visitor.at(".live")).to_contain_text("server gone")
    context.close()
