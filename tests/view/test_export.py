"""An exported episode: whole, readable anywhere, and harmless whatever is in it."""

import re
from html.parser import HTMLParser

import pytest

from turnwise.runs.episode_store import EpisodeStore
from turnwise.view.export import export_episode, is_odd
from turnwise.view.payloads import TokenTexts
from view.runs_to_view import said, write_run
from view.test_security import NASTY

EMPTY = {"meta", "input"}
KNOWN = {
    *("html", "head", "title", "style", "body", "h1", "h2", "dl", "dt", "dd", "div", "span", "b"),
    *("pre", "p", "label", *EMPTY),
}


class Page(HTMLParser):
    """What a browser would see: tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def exported(tmp_path, *texts, **options):
    run = write_run(tmp_path / "run", {1: [said(*texts, **options)]})
    (episode,) = EpisodeStore(run / "episodes", 0).read(1)
    return export_episode("run", "train", 1, 0, episode, TokenTexts(run / "tokenizer.json"))


@pytest.mark.parametrize("text", NASTY)
def test_no_text_becomes_a_part_of_the_page(tmp_path, text):
    page = Page(
        exported(tmp_path, text, told=text, tools=[text], error=text).replace("<!doctype html>", "")
    )
    assert page.open == []
    assert set(page.tags) <= KNOWN
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name in names)
    assert not names & {"src", "href", "style", "action", "srcdoc"}


@pytest.mark.parametrize("text", NASTY)
def test_nothing_in_it_stays_unseen(tmp_path, text):
    html = exported(tmp_path, text, told=text, tools=[text], error=text)
    html.encode()  # no half of a pair is left
    assert not [c for c in html if is_odd(c)]
    for character in text:
        if is_odd(character) and character != "\ud800":  # half of a pair is not stored
            assert f"⟦U+{ord(character):04X}⟧" in html


def test_it_needs_nothing_from_elsewhere(tmp_path):
    html = exported(tmp_path, "Hello")
    assert "Content-Security-Policy" in html
    assert "default-src 'none'" in html
    assert "<script" not in html
    assert not re.search(r"https?:|url\(|@import|src=|href=", html)


def test_the_conversation_is_all_there(tmp_path):
    page = Page(
        exported(
            tmp_path, "I look.", "I take it.", reward=0.25, tools=["look"], told="You see a lamp."
        )
    )
    words = "".join(page.words)
    for part in ("I look.", "I take it.", "You see a lamp.", "look", "worked", "0.25", "done"):
        assert part in words
    assert words.index("I look.") < words.index("You see a lamp.") < words.index("I take it.")


def test_every_token_says_what_is_known_of_it(client):
    status, headers, body = client.request("/export/real/train-2-1.html")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="real-train-2-1.html"'
    tokens = client.get("/api/runs/real/episodes/train-2-1/tokens")
    titles = [
        value
        for name, value in Page(body.decode().replace("<!doctype html>", "")).attributes
        if name == "title" and value.startswith("token ")
    ]
    assert len(titles) == tokens["count"]
    for place, title in enumerate(titles):
        assert title.startswith(f"token {place}, id {tokens['ids'][place]}:")
        assert ("not trained on" in title) == (not tokens["mask"][place])
        if tokens["mask"][place]:
            assert f"sampled in turn {tokens['turn'][place] + 1}\n" in title
            for name in ("advantage", "value", "log-prob at sampling", "log-prob at training"):
                assert f"\n{name} " in title
            assert f"advantage {tokens['columns']['advantages'][place]:.5g}" in title


def test_an_episode_that_is_not_there(client):
    assert client.error("/export/real/train-2-99.html", 404)
    assert client.error("/export/none/train-2-1.html", 404)
