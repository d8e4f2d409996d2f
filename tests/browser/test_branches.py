"""Episodes of agents: a map of the branches, each branch as one conversation, its tokens."""

import pytest
from playwright.sync_api import expect

from browser.browsing import LAPTOP, Visitor
from view.agent_runs import write_agent_run
from view.serving import serving

EPISODE = "run/agent/episodes/train-1-0"
TOKENS = "run/agent/tokens/train-1-0"


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    with serving(write_agent_run(tmp_path_factory.mktemp("agents") / "agent")) as client:
        yield client


@pytest.fixture
def guest(browser, agents):
    context = browser.new_context(viewport=LAPTOP)
    guest = Visitor(context, agents.port)
    yield guest
    guest.check()
    context.close()


def shown_turns(guest, *wanted):
    expect(guest.at(".turn")).to_have_count(len(wanted))
    for place, number in enumerate(wanted):
        expect(guest.at(".turn").nth(place)).to_have_attribute("data-turn", str(number - 1))


def test_a_branch_is_read_as_one_conversation(guest):
    guest.open(EPISODE)
    expect(guest.at(".branch-map .branch-turn")).to_have_count(9)
    shown_turns(guest, 1, 2, 3, 4, 6)
    expect(guest.at(".turn").nth(1)).to_contain_text("branch 1 · follows turn 1")
    expect(guest.at(".turn").nth(1)).to_contain_text("shared by branches 1, 2")
    guest.at(".branch-turn[data-turn='6']").click()
    shown_turns(guest, 1, 2, 3, 5, 7, 8)
    expect(guest.at(".branch-turn.is-here")).to_have_count(6)
    expect(guest.at(".turn[data-turn='6']")).to_be_in_viewport()
    expect(guest.at(".conversation")).to_contain_text("Try your second idea.")
    expect(guest.at(".conversation")).not_to_contain_text("Try your first idea.")
    guest.at(".fork a", has_text="branch 1 · turn 4").click()
    shown_turns(guest, 1, 2, 3, 4, 6)
    guest.at(".fork a", has_text="branch 3 · turn 9").click()
    shown_turns(guest, 9)
    guest.page.go_back()
    shown_turns(guest, 1, 2, 3, 4, 6)


def test_what_the_agent_returned_and_its_error(guest):
    guest.open(EPISODE)
    expect(guest.at(".returned")).to_contain_text('"tests":1')
    guest.open("run/agent/episodes/train-1-4")
    expect(guest.at(".returned")).to_contain_text("exit code 3")
    expect(guest.at(".returned")).to_contain_text("no such file")
    guest.open("run/agent/episodes/train-1-2")
    expect(guest.at(".problem")).to_contain_text("raise ValueError")


def test_an_episode_without_branches_has_no_map(guest):
    guest.open("run/agent/episodes/train-1-3")
    shown_turns(guest, 1, 2)
    expect(guest.at(".branch-map")).to_have_count(0)
    expect(guest.at(".fork")).to_have_count(0)
    guest.open("run/agent/tokens/train-1-3")
    expect(guest.at(".stream .tok").first).to_be_visible()
    expect(guest.at(".branch-map")).to_have_count(0)


def test_the_tokens_of_a_branch(guest, agents):
    stream = agents.get("/api/runs/agent/episodes/train-1-0/tokens")
    guest.open(f"{TOKENS}?branch=2")
    expect(guest.at(".seg.is-sampled")).to_have_count(6)
    expect(guest.at(".seg.is-shared").first).to_contain_text("branches 1, 2, 3")
    expect(guest.at(".seg[data-turn='7']")).to_contain_text("branch 2")
    # What comes between two turns of a branch is what the engine had there.
    text = "".join(guest.at(".stream .flow").all_text_contents()).replace("↵", "\n")
    assert text.replace("·", " ").count("Try your second idea.") == 1
    assert "first" not in text.replace("·", " ").partition("two ways")[2]
    guest.at(".branch-turn[data-turn='8']").click()
    expect(guest.at(".seg.is-sampled")).to_have_count(1)
    fact = guest.at(".fact", has=guest.page.locator("dt:text-is('branch')"))
    expect(fact).to_contain_text("3")
    start = agents.get("/api/runs/agent/episodes/train-1-0")["agents"][0]["turns"][4]["tokens"][0]
    guest.open(f"{TOKENS}?token={start}")  # a link to a token chooses its branch
    expect(guest.at(".token-facts")).to_contain_text(f"{start} of {stream['count']:,}")
    expect(fact).to_contain_text("2")
    guest.press("ArrowRight")
    expect(guest.at(".token-facts")).to_contain_text(f"{start + 1} of")


def test_episodes_with_branches_are_found(guest):
    guest.open("run/agent/episodes")
    expect(guest.at(".row[data-id]")).to_have_count(5)
    guest.at("select[name=min_branches]").select_option("2")
    expect(guest.at(".row[data-id]")).to_have_count(2)
    expect(guest.at(".row[data-id]").first).to_contain_text("3 branches")


def test_a_key_goes_to_the_next_branch(guest):
    guest.open(EPISODE)
    shown_turns(guest, 1, 2, 3, 4, 6)
    guest.press("b")
    shown_turns(guest, 1, 2, 3, 5, 7, 8)
    guest.press("B", "B")
    shown_turns(guest, 9)
    guest.open(TOKENS)
    expect(guest.at(".seg.is-sampled")).to_have_count(5)
    guest.press("b")
    expect(guest.at(".seg.is-sampled")).to_have_count(6)
