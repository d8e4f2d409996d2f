"""`turnwise chat`: what is said and read, piped and in a terminal; the tokens stay as sampled."""

import re
import signal
from itertools import pairwise

import pytest

from cli.terminal import OnTerminal
from turnwise.cli import agents
from turnwise.cli.chat import legible
from turnwise.inference import FinishReason, GenerationResult, ScriptedEngine
from turnwise.models import load_model, load_tokenizer


class Reader(ScriptedEngine):
    """Reads its answers off a list, as many tokens at a time as it is asked for."""

    def __init__(self, *answers: str) -> None:
        super().__init__(load_tokenizer("tiny"))
        self.answers = list(answers)
        self.requests: list = []
        self.rest: list[int] = []
        self.last: list[int] = []
        self.ended: list = []

    async def sample(self, request):
        self.requests.append(request)
        if list(request.prompt_ids) != self.last:  # not the next piece of the same answer
            text = self.answers.pop(0)
            self.rest = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        said, self.rest = self.rest[: request.max_tokens], self.rest[request.max_tokens :]
        self.last = [*request.prompt_ids, *said]
        reason = FinishReason.LENGTH if self.rest else FinishReason.STOP
        return GenerationResult(said, [-1.0] * len(said), reason, 0)

    def end_session(self, session) -> None:
        self.ended.append(session)

    @property
    def heard(self) -> list[str]:
        return [self.tokenizer.decode(request.prompt_ids) for request in self.requests]


@pytest.fixture
def reads(monkeypatch):
    """Put an engine that reads these answers in the place of any other."""

    def install(*answers: str) -> Reader:
        engine = Reader(*answers)
        monkeypatch.setattr(agents, "create_inference_engine", lambda *_, **__: engine)
        return engine

    return install


def test_piped_lines_are_answered_and_nothing_else_is_written(turnwise, reads):
    engine = reads("Good day.", "Four, I think; but then, who am I to say?\nTwo lines.")
    ran = turnwise("chat", "tiny", typed="//etc/hosts//\n\nWhat is 2 + 2?\n")
    assert "user\n/etc/hosts//<|im_end|>" in engine.heard[0]
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "Good day.\nFour, I think; but then, who am I to say?\nTwo lines.\n"


def test_the_stream_only_grows_and_its_session_is_kept(turnwise, reads):
    engine = reads("An answer.", "Yes.", "New.")
    turnwise("chat", "tiny", "--system", "Be brief.", typed="One\nTwo\n/reset\nThree\n")
    streams = [list(request.prompt_ids) for request in engine.requests]
    sessions = [request.session for request in engine.requests]
    num_first = sessions.count(sessions[0])
    assert num_first == len(sessions) - 1 == 2
    assert engine.ended == [sessions[0], sessions[-1]]
    for before, after in pairwise(streams[:num_first]):
        assert after[: len(before)] == before
    assert engine.tokenizer.decode(streams[num_first - 1]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n"
        "<|im_start|>assistant\nAn answer.<|im_end|>\n"
        "<|im_start|>user\nTwo<|im_end|>\n<|im_start|>assistant\n"
    )
    opening = engine.tokenizer.decode(streams[-1])
    assert "Be brief." in opening
    assert "One" not in opening


def test_a_cut_answer_is_closed_before_the_next_message(turnwise, reads):
    engine = reads("A very long answer, too long to be said.", "Yes.")
    ran = turnwise("chat", "tiny", "--max-tokens", "20", typed="One\nTwo\n")
    assert ran.out == "A very long answer, \nYes.\n"
    assert "A very long answer, <|im_end|>\n<|im_start|>user\nTwo<|im_end|>" in engine.heard[-1]


def test_an_end_that_is_text(turnwise, reads):
    engine = reads(" Fourteen marks\nUser: and more", "Ok\n")
    ran = turnwise("chat", "tiny", "--template", "plain", typed="Hello\nBye\n")
    assert ran.out == "Fourteen marks\nOk\n"
    assert len(engine.requests) == 2


def test_what_a_model_says_cannot_steer_the_terminal(turnwise, reads):
    reads("\x1b[31mred\x07\x1b]52;c;aGk=\x07\ttab\r\x9b2J")
    out = turnwise("chat", "tiny", typed="Hello\n").out
    assert "".join(out.split()) == "␛[31mred␇␛]52;c;aGk=␇tab␍�2J"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
    assert legible("ordinary ünïcödé 日本\n\t🙂👍🏽") == "ordinary ünïcödé 日本\n\t🙂👍🏽"


def test_commands(turnwise, reads):
    reads("Yes.")
    ran = turnwise("chat", "tiny", typed="Hi\n/rest\n/quit\nnever said\n")
    first, second = ran.out.splitlines()
    assert first == "Yes."
    assert second.startswith("There is no command /rest. /reset starts a new conversation")


@pytest.mark.parametrize("backend", ["local", "transformers", "scripted"])
def test_the_same_seed_gives_the_same_conversation(turnwise, backend):
    words = ("chat", "tiny", "--backend", backend, "--device", "cpu", "--max-tokens", "24")
    first, second, other = (
        turnwise(*words, "--seed", seed, typed="Hello\nAnd you?\n") for seed in ("1", "1", "2")
    )
    assert first.code == 0, first.err
    assert first.out == second.out != other.out


@pytest.fixture
def folder(tmp_path):
    loaded = load_model("tiny", device="cpu")
    loaded.tokenizer.chat_template = None
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    return str(tmp_path / "saved")


def test_a_folder_without_a_template_asks_for_one(turnwise, folder):
    ran = turnwise("chat", folder, typed="Hello\n")
    assert (ran.code, ran.out) == (2, "")
    assert "no chat template. Choose one with --template: chatml, " in ran.err
    ran = turnwise("chat", folder, "--template", "chatml", "--max-tokens", "4", typed="Hello\n")
    assert ran.code == 0, ran.err


def test_a_full_context_is_told(turnwise):
    ran = turnwise("chat", "tiny", "--device", "cpu", typed="x" * 5000 + "\n")
    assert (ran.code, ran.out) == (0, "\n")
    assert ran.err == "the context of 4,096 tokens is full, /reset starts a new conversation\n"


def test_in_a_real_terminal_ctrl_c_ends_the_answer_and_ctrl_d_the_program():
    terminal = OnTerminal("chat", "tiny", "--device", "cpu", "--max-tokens", "3900")
    process = terminal.process
    assert "/reset starts a new conversation" in terminal.read_until("> ")
    terminal.type(b"Hello\n")
    terminal.read_until("Hello\r\n")
    assert terminal.has_more(60), "the answer did not begin"
    process.send_signal(signal.SIGINT)
    terminal.read_until("interrupted")
    terminal.read_until("> ")
    hint = "/quit or Ctrl-D exits"
    terminal.insist(lambda: process.send_signal(signal.SIGINT), lambda: terminal.has(hint))
    terminal.read_until("> ")
    terminal.insist(
        lambda: terminal.type(b"\x04"), lambda: process.poll() is not None, is_ending=True
    )
    assert process.poll() == 0


# ---- runs ----


def test_a_run_is_asked_with_its_prompt_and_tools(turnwise, runs, reads):
    engine = reads('{"name": "look_up", "arguments": {"kind": "tree"}}', "It is oak.", "Bye.")
    options = ("--max-tokens", "99")
    ran = turnwise("chat", str(runs.tools), *options, typed="Which tree?\nThank you\n")
    assert ran.code == 0, ran.err
    assert ran.err == (
        "the model after step 1, with its system prompt and the tools look_up; its environment "
        "greenhouse.py:Greenhouse is not used\n"
    )
    assert ran.out == ("  look_up(kind='tree') -> oak\nIt is oak.\nBye.\n")
    assert "You are a gardener." in engine.heard[0]
    assert engine.heard[0].count("You can call these tools:") == 1
    assert "look_up(kind: string): Find the word of a kind." in engine.heard[0]
    assert engine.heard[1].startswith(engine.heard[0])
    assert "oak<|im_end|>" in engine.heard[1]
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p) == (1.0, 1.0)


def test_a_call_that_cannot_be_read_is_told_to_the_model(turnwise, runs, reads):
    engine = reads('{"name": "look_up", "arguments": {"kind": ', "It is oak.")
    options = ("--max-tokens", "99", "--system", "Be brief.")
    ran = turnwise("chat", str(runs.tools), *options, typed="Which tree?\n")
    assert "with your system prompt and the tools look_up" in ran.err
    assert "A call could not be read: " in ran.out
    assert "A call could not be read: " in engine.heard[1]


def test_the_prompt_of_a_runs_environment_is_used_without_its_code(turnwise, runs, reads):
    engine = reads("take")
    ran = turnwise("chat", str(runs.script), typed="Take 1.\n")
    assert "with its system prompt and no tools" in ran.err
    assert "Say take or stop." in engine.heard[0]


def test_a_server_cannot_load_a_run(turnwise, runs):
    ran = turnwise("chat", str(runs.script), "--backend", "vllm", typed="Hello\n")
    assert ran.code == 2
    assert f"turnwise export {runs.script} FOLDER" in ran.err
    ran = turnwise("chat", str(runs.script), "--device", "cpu", typed="Hello\n")
    assert "is a run, which has its own" in ran.err


def test_a_tool_that_is_typed_is_the_one_in_this_folder(
    turnwise, runs, reads, tmp_path, monkeypatch
):
    """The folder in which the run began has a file of the same name."""
    (tmp_path / "greenhouse.py").write_text(
        "from turnwise import tool\n\n\n@tool\ndef look_up(kind: str) -> str:\n"
        '    """Find the word of a kind."""\n    return "mine"\n'
    )
    monkeypatch.chdir(tmp_path)
    reads('{"name": "look_up", "arguments": {"kind": "tree"}}', "It is mine.")
    options = ("--tool", "greenhouse.py:look_up", "--max-tokens", "99")
    ran = turnwise("chat", str(runs.tools), *options, typed="Which tree?\n")
    assert ran.code == 0, ran.err
    assert "look_up(kind='tree') -> mine" in ran.out
