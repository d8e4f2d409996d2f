"""A whole run as one page: what is in it, how large it gets, and that nothing in it does harm."""

import json

import pytest

from turnwise.cli import main
from turnwise.types import EpisodeStatus
from turnwise.view.export import is_odd
from turnwise.view.report import charts, export_run
from view.runs_to_view import said, write_run
from view.serving import open_library
from view.test_export import KNOWN, Page
from view.test_security import NASTY

TAGS = {
    *KNOWN,
    *("header", "section", "h3", "h4", "article", "a", "i", "ol", "li", "table", "thead", "tbody"),
    *("tr", "th", "td", "figure", "figcaption", "svg", "polyline", "circle", "line", "text"),
}


def read(html):
    return Page(html.replace("<!doctype html>", ""))


def rooms(step):
    """Four episodes, of which the first earns least and the last most; one more failed."""
    played = [
        said(f"I take {n} at {step}.", seed=n, asked=f"Room {n}", reward=n / 4, success=n == 3)
        for n in range(4)
    ]
    status = EpisodeStatus.TOOL_ERROR
    return [*played, said("Oops.", seed=9, status=status, error="the lamp broke")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = write_run(
        tmp_path_factory.mktemp("report") / "rooms",
        {step: rooms(step) for step in range(1, 9)},
        metrics={"success": 0.25, "eval/greedy/reward": 0.5},
    )
    status = json.loads((run / "run.json").read_text())
    facts = {"command": "python rooms.py", "git": {"commit": "abc123", "dirty": True}}
    (run / "run.json").write_text(json.dumps({**status, "provenance": facts}))
    (run / "config.yaml").write_text("training:\n  learning_rate: 0.002\nreward: rooms.py:score\n")
    return run


def test_the_command_writes_the_whole_run(folder, tmp_path, capsys):
    file = tmp_path / "out" / "rooms.html"
    main_ended(["export", str(folder), str(file), "--episodes", "8"])
    assert f"{file} has the run" in capsys.readouterr().out
    page = read(file.read_text())
    words = "".join(page.words)
    for part in (
        *("talk · finished · step 8 of 9 · 40 episodes", "All episodes"),
        *("learning rate", "0.002", "rooms.py:score", "python rooms.py", "abc123"),
        *("the lamp broke", "training 0.8", "greedy evaluation 0.5"),
    ):
        assert part in words, part
    whole = {value for name, value in page.attributes if name == "id"}
    links = {value for name, value in page.attributes if name == "href"}
    assert links == {f"#{name}" for name in whole}
    # Two failed ones, and the worst and the best of three steps from the first to the last.
    assert whole == {
        *("train-8-4", "train-7-4"),
        *(f"train-{step}-{place}" for step in (1, 4, 8) for place in (0, 3)),
    }
    assert "best reward of step 4" in words


def main_ended(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_it_stays_within_its_size_and_says_what_it_leaves_out(folder):
    run = open_library(folder).get("rooms")
    small = export_run(run, 20, max_bytes=20_000)
    # The table is no conversation, and always there.
    assert len(small.split("All episodes</h3>")[0].encode()) < 20_000
    assert "more are left out, because the file would be larger than 0.0191 MiB" in small
    assert "left out" not in export_run(run, 20)
    assert "<article" not in export_run(run, 0)


def test_no_text_becomes_a_part_of_the_page(tmp_path):
    episodes = [
        said(text, seed=n, told=text, asked=text, tools=[text], error=text, part=text)
        for n, text in enumerate(NASTY)
    ]
    run = write_run(tmp_path / "nasty", {1: episodes}, status=f"stopped: {NASTY[0]}")
    (run / "config.yaml").write_text(
        json.dumps({"reward": "".join(filter(str.isprintable, NASTY))})
    )
    html = export_run(open_library(run).get("nasty"), 500)
    page = read(html)
    assert page.open == []
    assert set(page.tags) <= TAGS
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name in names)
    assert not names & {"src", "style", "action", "srcdoc"}
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert not [c for c in html if is_odd(c)]
    assert "<script" not in html
    assert "default-src 'none'" in html


def test_a_run_that_did_nothing(tmp_path):
    run = write_run(tmp_path / "none", {})
    html = export_run(open_library(run).get("none"))
    assert "No step of this run was finished." in html
    assert "This run keeps no episodes." in html


def test_a_table_of_very_many_is_spread_over_the_training(tmp_path):
    run = write_run(tmp_path / "many", {s: [said()] * 150 for s in range(1, 11)})
    html = export_run(open_library(run).get("many"), 0)
    assert "900 of 1,500 episodes</h3>" in html
    assert ">train-1-0<" in html
    assert ">train-10-149<" in html


def test_a_long_curve_keeps_its_extremes():
    values = [0.0] * 9999
    values[5000] = 7.0
    (figure,) = charts({"steps": list(range(9999)), "series": {"reward": values}})
    points = figure.partition('points="')[2].partition('"')[0].split()
    assert len(points) < 400
    assert min(float(point.partition(",")[2]) for point in points) < 20  # the peak, near the top


def test_the_environments_of_a_mix_have_curves_of_their_own():
    series = {"reward": [0.5, 0.75], "chess/reward": [0.0, 1.0], "eval/chess/greedy/reward": [1, 2]}
    figures = charts({"steps": [1, 2], "series": series}, ["chess", "go"])
    assert len(figures) == 2
    assert "<title>chess/reward</title>" in figures[1]
    assert "greedy evaluation <b>2</b>" in figures[1]


def test_the_viewer_offers_it(client):
    status, headers, body = client.request("/export/real.html")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="real.html"'
    assert b"train-2-" in body
    assert client.error("/export/none.html", 404)
