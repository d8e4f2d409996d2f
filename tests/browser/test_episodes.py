"""What did the model say? Lists, filters, conversations, the same seed again."""

import re

import pytest
from playwright.sync_api import expect

SEED = str(2**62 + 3)


def rows(visitor):
    return visitor.at(".list .row")


def test_a_conversation_has_calls_results_rewards_and_roles(visitor):
    visitor.open("run/tools/episodes/train-2-3")
    expect(visitor.at(".turn")).to_have_count(3)
    first = visitor.at(".turn").first
    expect(first.locator(".call strong")).to_have_text("look")
    expect(first.locator(".args")).to_contain_text("Look around.")
    expect(first.locator(".result")).to_contain_text("You are in room 3 at step 2.")
    expect(visitor.at(".conversation-reward dd")).to_have_text("1")
    expect(visitor.at(".turn").last.locator(".turn-reward")).to_have_text("+1")
    expect(visitor.at("[data-role=user] .role").first).to_have_text("environment")


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        ("status=truncated_by_turns", 3),
        ("tool=take", 9),
        ("max_reward=-0.1", 3),
        (f"seed={SEED}", 3),
        ("min_turns=3&max_step=2", 4),
        ("text=room 3 at step 2", 1),
    ],
)
def test_filters_stand_in_the_address(visitor, asked, number):
    visitor.open(f"run/tools/episodes?{asked}")
    expect(visitor.at(".list-count")).to_contain_text(f"{number} episode")
    expect(rows(visitor)).to_have_count(number)


def test_filters_are_chosen_and_cleared(visitor):
    visitor.open("run/tools/episodes")
    visitor.at("select[name=status]").select_option("truncated_by_turns")
    expect(rows(visitor)).to_have_count(3)
    visitor.page.get_by_role("button", name="More filters").click()
    visitor.at("input[name=min_step]").fill("2")
    visitor.at("input[name=min_step]").press("Enter")
    expect(rows(visitor)).to_have_count(2)
    expect(visitor.page).to_have_url(re.compile("status=truncated_by_turns.*min_step=2"))
    visitor.page.get_by_role("button", name="clear all").click()
    expect(visitor.at(".list-count")).to_contain_text("15 episodes")


def test_sorting(visitor):
    visitor.open("run/tools/episodes")
    visitor.at("select[name=sort]").select_option("-reward")
    expect(rows(visitor).first.locator(".reward")).to_have_text("1")
    visitor.at("select[name=sort]").select_option("reward")
    expect(rows(visitor).first.locator(".reward")).to_have_text("−0.5")


def test_search_marks_what_was_found(visitor):
    visitor.open("run/tools/episodes")
    expect(rows(visitor).first).to_be_visible()
    visitor.press("/")
    visitor.page.keyboard.type("north")
    expect(rows(visitor)).to_have_count(6)
    expect(rows(visitor).first.locator("mark")).to_have_text("north")
    visitor.press("Escape", "j")
    expect(visitor.at(".conversation mark").first).to_have_text("north")


def test_keys_go_through_the_list_and_back_goes_back(visitor):
    visitor.open("run/tools/episodes")
    title = visitor.at(".conversation-head h1")
    expect(title).to_have_text("train-3-0")
    visitor.press("j")
    expect(title).to_have_text("train-3-1")
    visitor.press("j")
    expect(title).to_have_text("train-3-2")
    visitor.press("k")
    expect(title).to_have_text("train-3-1")
    visitor.page.go_back()
    expect(title).to_have_text("train-3-2")
    visitor.press("Enter")
    expect(visitor.page).to_have_url(re.compile("tokens/train-3-2"))


def test_one_episode_is_saved_as_a_file(visitor):
    visitor.open("run/tools/episodes/train-2-3")
    with visitor.page.expect_download() as download:
        visitor.at("[data-action=export]").click()
    assert download.value.suggested_filename.endswith("train-2-3.html")
    assert "You are in room 3 at step 2." in download.value.path().read_text()
