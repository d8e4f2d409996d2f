"""The gateway on a real vLLM: exact tokens, the KV cache of what branches share, aborts."""

from agents.every_engine import Held, check_exact, check_hang_up, converse, recorded
from agents.serve_command import check_served, served

BLOCK = 32
"""Tokens of a block of vLLM's KV cache, which shares whole blocks."""


def test_a_conversation_has_exact_tokens_and_branches_reuse_the_cache(engine, first, monkeypatch):
    cached = {}
    step = engine._vllm.step

    def remember():
        outputs = step()
        for output in outputs:
            cached.setdefault(output.request_id, output.num_cached_tokens)
        return outputs

    monkeypatch.setattr(engine._vllm, "step", remember)
    with recorded(engine) as (engine, session, llm):
        converse(llm)
        check_exact(engine, session, first.model)
    prompts = [list(request.prompt_ids) for request, _ in engine.turns]
    for number, reused in enumerate(cached.values()):
        earlier = (
            [*request.prompt_ids, *result.ids[:-1]] for request, result in engine.turns[:number]
        )
        common = max((num_common(prompts[number], ids) for ids in earlier), default=0)
        # A retry has its whole prompt in common; vLLM computes the last block for its logits.
        assert reused >= (min(common, len(prompts[number]) - 1) // BLOCK) * BLOCK
    assert sum(cached.values()) > 0


def num_common(ids, others):
    pairs = zip(ids, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(others)))


def test_the_request_of_a_client_that_hangs_up_is_aborted(engine, monkeypatch):
    monkeypatch.setattr(engine._vllm, "step", engine._vllm.step)  # restored afterwards
    with recorded(engine, max_tokens=1000) as (recorder, session, llm):
        check_hang_up(recorder, session, llm, Held(engine._vllm, "step"))
    assert len(engine._turns) == 0


def test_turnwise_serves_with_it(first):
    with served("--backend", "vllm", "--name", "first", model=str(first.folder)) as (llm, _):
        check_served(llm)
