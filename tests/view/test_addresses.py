"""Every address of the viewer, on a run of the real trainer and on made-up ones."""

import numpy as np
import pytest

from turnwise.runs.episode_store import EpisodeStore

REAL = "/api/runs/real"
TALK = "/api/runs/talk"


def stored(shown_runs, step=2, kind="train"):
    return EpisodeStore(shown_runs / "a" / "real" / "episodes", 0).read(step, kind)


class TestRuns:
    def test_all_are_listed_each_under_a_key_of_its_own(self, client):
        runs = {run["key"]: run for run in client.get("/api/runs")["runs"]}
        assert set(runs) == {"real", "talk", "talk~2"}
        assert {runs["talk"]["name"], runs["talk~2"]["name"]} == {"talk"}
        assert runs["talk"]["path"] != runs["talk~2"]["path"]

    def test_how_a_run_stands(self, client, shown_runs):
        run = next(r for r in client.get("/api/runs")["runs"] if r["key"] == "real")
        assert run["path"] == str(shown_runs / "a" / "real")
        assert (run["status"], run["step"], run["total_steps"]) == ("finished", 2, 2)
        assert (run["environment"], run["is_live"]) == ("Memory", False)
        assert run["num_episodes"] == 2 * 4 + 2 * 4
        assert run["indexed"] == {"files": 6, "of": 6}
        assert 0 < run["updated"] - run["started"] < 3600
        assert run["last"]["step"] == 2
        assert run["headline"]["over"].endswith("greedy episodes on held-out seeds")
        assert run["best_checkpoint"]["metric"] == "eval/greedy/reward"

    def test_more_of_one_run(self, client):
        run = client.get(REAL)
        assert run["config"]["training"]["batch_size"] == 4
        assert run["steps"] == [1, 2]
        assert run["kinds"] == ["train", "eval-greedy", "eval-sampled"]
        assert sum(run["statuses"].values()) == 16
        assert "step 2/2" in run["log_tail"]
        assert run["tools"] == {}
        assert client.get(TALK)["tools"]["look"] > 0

    def test_metrics_are_columns(self, client):
        found = client.get(f"{REAL}/metrics")
        assert found["steps"] == [1, 2]
        assert all(len(column) == 2 for column in found["series"].values())
        assert client.get(REAL)["last"]["reward"] == found["series"]["reward"][-1]
        later = client.get(f"{REAL}/metrics", since=1)
        assert later["steps"] == [2]
        assert later["series"]["reward"] == found["series"]["reward"][1:]

    def test_one_that_is_not_there(self, client):
        for path in ("", "/metrics", "/episodes", "/episodes/train-1-0"):
            assert "there is no run 'none'" in client.error(f"/api/runs/none{path}", 404)


class TestEpisodes:
    def test_the_newest_come_first(self, client):
        found = client.get(f"{REAL}/episodes", kind="train")
        assert found["total"] == 8
        assert [e["id"] for e in found["episodes"]] == [
            f"train-{step}-{place}" for step in (2, 1) for place in range(4)
        ]

    def test_what_a_list_says_of_each(self, client, shown_runs):
        found = client.get(f"{REAL}/episodes", step=2, kind="train")["episodes"]
        for told, episode in zip(found, stored(shown_runs), strict=True):
            agent = episode.agent
            assert (told["seed"], told["status"]) == (str(episode.seed), episode.status)
            assert told["reward"] == agent.reward.total
            assert (told["turns"], told["tokens"]) == (3, len(agent.ids))
            assert told["sampled_tokens"] == agent.mask.sum()
            assert told["seconds"] == episode.seconds["total"]

    def test_pages(self, client):
        every = client.get(f"{TALK}/episodes", limit=100)["episodes"]
        pages = [
            client.get(f"{TALK}/episodes", limit=7, offset=start)["episodes"]
            for start in range(0, 28, 7)
        ]
        assert [e for page in pages for e in page] == every

    def test_one_episode_is_the_one_that_was_stored(self, client, shown_runs):
        told = client.get(f"{REAL}/episodes/train-2-1")
        episode = stored(shown_runs)[1]
        (agent,) = told["agents"]
        assert agent["messages"] == episode.agent.messages
        assert [t["text"] for t in agent["turns"]] == [t.text for t in episode.agent.turns]
        assert [tuple(t["tokens"]) for t in agent["turns"]] == [
            t.tokens for t in episode.agent.turns
        ]
        assert agent["reward"]["total"] == episode.agent.reward.total
        assert sum(agent["reward"]["turns"]) == pytest.approx(episode.agent.reward.total)
        assert (told["previous"], told["next"]) == ("train-2-0", "train-2-2")

    def test_calls_and_their_results(self, client):
        (turn, _) = client.get(f"{TALK}/episodes/train-3-0")["agents"][0]["turns"]
        (call,) = turn["calls"]
        assert (call["name"], call["arguments"]) == ("look", {"what": "Hello"})
        assert (call["result"], call["success"]) == ("Go on.", True)

    @pytest.mark.parametrize("name", ["train-2-99", "train-99-0", "eval-2-0", "x", "train-2", "-1"])
    def test_one_that_is_not_there(self, client, name):
        assert client.error(f"{REAL}/episodes/{name}", 404)

    def test_the_same_seed_over_the_steps(self, client):
        found = client.get(f"{TALK}/episodes", seed=7, sort="step")["episodes"]
        assert [e["id"] for e in found] == ["train-3-0", "eval-greedy-3-0"]
        (only,) = client.get(f"{TALK}/episodes", seed=7, kind="eval-greedy")["episodes"]
        assert only["answer"] == "Test"


class TestTokens:
    def test_every_token_with_all_that_is_known_of_it(self, client, shown_runs):
        told = client.get(f"{REAL}/episodes/train-2-1/tokens")
        agent = stored(shown_runs)[1].agent
        assert told["ids"] == agent.ids.tolist()
        assert told["mask"] == agent.mask.astype(int).tolist()
        assert told["count"] == len(told["tokens"]) == len(agent.ids)
        columns = {"sampler_log_probs", "log_probs", "values", "advantages", "returns"}
        assert set(told["columns"]) == columns
        for name in columns:
            column = np.array([np.nan if x is None else x for x in told["columns"][name]])
            np.testing.assert_allclose(column, agent.columns[name], rtol=1e-5)

    def test_turns_are_where_the_mask_is(self, client):
        told = client.get(f"{REAL}/episodes/train-2-1/tokens")
        assert [turn >= 0 for turn in told["turn"]] == [bool(m) for m in told["mask"]]
        assert sorted(set(told["turn"])) == [-1, 0, 1, 2]

    def test_texts_are_what_the_messages_say(self, client):
        told = client.get(f"{TALK}/episodes/train-3-0/tokens")
        assert "".join(told["tokens"]) == "Begin.HelloGo on.ByeGo on."
        assert told["note"] is None
        told = client.get(f"{REAL}/episodes/train-2-1/tokens")  # by the tokenizer that it kept
        assert "".join(told["tokens"]).startswith("<|im_start|>user\n")

    def test_a_run_without_its_tokenizer_says_so(self, client, shown_runs):
        file = shown_runs / "c" / "talk" / "tokenizer.json"
        kept = file.read_text()
        file.unlink()
        told = client.get("/api/runs/talk~2/episodes/train-1-0/tokens")
        assert "no tokenizer.json" in told["note"]
        assert told["tokens"][0] == f"⟨{told['ids'][0]}⟩"
        file.write_text(kept)
        assert client.get("/api/runs/talk~2/episodes/train-1-0/tokens")["note"] is None


class TestTimeline:
    def test_a_step_of_the_real_trainer(self, client):
        found = client.get(f"{REAL}/steps/2/timeline")
        names = [phase["name"] for phase in found["phases"]]
        assert names == ["play", "log_probs", "update", "evaluate", "log"]
        play = found["phases"][0]
        assert len(found["episodes"]) == 4
        for row in found["episodes"]:
            assert play["start"] - 0.05 <= row["start"] <= row["end"] <= play["end"] + 0.05
            kinds = {span["kind"] for span in row["spans"]}
            assert {"generate", "environment"} <= kinds
            starts = [span["start"] for span in row["spans"]]
            assert starts == sorted(starts)
            assert [s["turn"] for s in row["spans"] if s["kind"] == "generate"] == [0, 1, 2]
        assert {"generate", "environment", "update"} <= set(found["shares"])

    def test_spans_stand_where_they_were_measured(self, client):
        (row,) = client.get(f"{TALK}/steps/3/timeline")["episodes"]
        assert (row["start"], row["end"]) == (0.5, 1.75)
        drawn = [(s["kind"], s["start"], s["end"]) for s in row["spans"] if s["turn"] == 0]
        assert drawn == [
            ("generate", 0.5, 0.75),
            ("tool", 0.75, 0.8125),
            ("environment", 0.8125, 0.9375),
        ]

    def test_an_evaluation_and_a_step_that_is_not_there(self, client):
        found = client.get(f"{REAL}/steps/2/timeline", kind="eval-greedy")
        assert [phase["name"] for phase in found["phases"]] == ["play"]
        assert "no train episodes of step 9" in client.error(f"{REAL}/steps/9/timeline", 404)


class TestThePage:
    def test_it_is_served_with_its_parts(self, client):
        status, headers, body = client.request("/")
        assert status == 200
        assert headers["content-type"].startswith("text/html")
        assert b"/assets/" in body
        status, headers, _ = client.request("/assets/js/main.js")
        assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")

    def test_head_has_no_body(self, client):
        for path in ("/api/runs", "/api/events", "/", "/export/real/train-2-1.html"):
            status, _, body = client.request(path, "HEAD")
            assert (status, body) == (200, b"")
