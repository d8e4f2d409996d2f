"""Uses an LLM judge as the reward: another language model scores each episode by a rubric.

The agent answers somebody at the door; the judge scores how polite the answer is. Any server with
OpenAI's chat API can be the judge (vLLM, SGLang, llama.cpp, a paid service). Without --url this
file starts a fake server that scores words by a table; the requests are real.

    vllm serve Qwen/Qwen3-4B &
    python examples/llm_judge.py --url http://localhost:8000/v1 --model Qwen/Qwen3-4B
    python examples/llm_judge.py            the fake judge; a few minutes on two cores
    python examples/llm_judge.py --quick    a few steps in seconds, to see that it runs

The agent starts with random words, and the judge's score (reward/judge) rises.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from turnwise import BaseEnvironment, ConfigStore, LLMJudge, Trainer, WeightedReward
from turnwise.reward import openai_complete

SCORES = {"welcome": 10, "hello": 7, "what?": 3, "go away": 0}
RUBRIC = "Was the agent polite to the person at the door? 10 is as polite as can be, 0 is rude."


class Door(BaseEnvironment):
    """One turn: somebody knocks, the agent replies."""

    max_steps = 1
    quick = True

    def reset(self):
        self._done = False
        self.name = self.rng.choice(["Ann", "Ben", "Cleo"])
        return f"{self.name} knocks."

    def step(self, action):  # the environment gives no reward
        self._done = True
        return "", 0.0, True, {}

    def get_state_description(self):
        return f"{self.name} is at the door"

    def sample_action(self, rng):
        return rng.choice(sorted(SCORES))


class StandIn(BaseHTTPRequestHandler):
    """A fake judge: answers POST /v1/chat/completions from a table."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        transcript = request["messages"][0]["content"].rpartition("knocks.")[2].lower()
        score = max((score for word, score in SCORES.items() if word in transcript), default=0)
        answer = {"role": "assistant", "content": f"I have read it.\nScore: {score}"}
        body = json.dumps({"choices": [{"message": answer}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 9
    config.training.warm_start = "random"
    config.training.warm_start_steps = 3 if quick else 40
    config.training.warm_start_learning_rate = 3e-3
    config.training.adv_estimator = "rloo"
    config.training.group_size = 4
    config.training.batch_size = 2 if quick else 8
    config.training.learning_rate = 5e-4
    config.training.kl_loss_coef = 0.02
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 4
    return config


def main(arguments):
    url = arguments.url
    if url is None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
    judge = LLMJudge(openai_complete(url, arguments.model), rubric=RUBRIC)
    reward = WeightedReward({"judge": (judge, 1.0)})  # more parts can be added
    with Trainer(settings(arguments.quick), Door, reward_fn=reward) as trainer:
        history = trainer.fit()
        print(f"the judge's score: {history[0]['reward']:.2f}, then {history[-1]['reward']:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="a server with OpenAI's chat API; ends in /v1")
    parser.add_argument("--model", default="stand-in", help="the name of the judge's model")
    parser.add_argument("--quick", action="store_true")
    main(parser.parse_args())
