"""SGLang's wire format: the only place that knows what requests and answers look like.

Read in the source of 0.5.23, and checked against exchanges recorded from a 0.5.17 server. The
same bodies go to `/generate` as JSON and to `sglang.Engine.async_generate` as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.errors import EngineError
from turnwise.inference.protocol import GenerationRequest
from turnwise.inference.sglang.filters import LogMass, kept_log_mass


@dataclass(frozen=True)
class ServerFacts:
    """What an SGLang says of itself."""

    max_input_length: int
    """Longest input, in tokens."""
    is_deterministic: bool
    """Started with `--enable-deterministic-inference`: seeds count, min-p cannot be."""
    sampling_backend: str
    weight_version: str
    model_paths: tuple[str, ...]
    """Where its model was loaded from, the surest first."""

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> ServerFacts:
        """From `/server_info`, with `/model_info` on top where there is one."""
        try:
            return cls(
                max_input_length=info["max_req_input_len"] - 1,  # the limit itself is refused
                is_deterministic=bool(info["enable_deterministic_inference"]),
                sampling_backend=str(info["sampling_backend"]),
                weight_version=str(info["weight_version"]),
                model_paths=(str(info["model_path"]), str(info["tokenizer_path"])),
            )
        except KeyError as error:
            raise EngineError(
                f"the server's description lacks {error}: SGLang 0.5.17 or later was expected"
            ) from None


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    ids: list[int]
    log_probs: list[float]
    """Under the distribution after the filters."""
    finish: str
    """stop, length or abort."""
    matched: int | str | None
    """The stop token or the stop string."""
    weight_version: str | None
    slack: float
    """Most that a log-prob may be off, where the filters let through more than was listed."""


NOTHING = Answer([], [], "abort", None, None, 0.0)
"""Of a request that was called off before it was answered."""


def generation_body(
    request: GenerationRequest, prompt_ids: Sequence[int], max_tokens: int, rid: str, num_top: int
) -> dict[str, Any]:
    """Ask for tokens, their log-probs, and those of the `num_top` likeliest in each place."""
    sampling: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k or -1,
        "min_p": request.sampling.min_p,
        "sampling_seed": request.seed % 2**63,
        # With this the model's own end tokens stop nothing, but neither do ours.
        "ignore_eos": not request.stop_ids,
    }
    if request.stop_ids:
        sampling["stop_token_ids"] = sorted(request.stop_ids)
    if request.stop_strings:
        sampling["stop"] = list(request.stop_strings)
    body = {
        "rid": rid,
        "input_ids": list(prompt_ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
    }
    return {**body, "top_logprobs_num": num_top} if num_top else body


def num_top_needed(request: GenerationRequest, most: int, vocab_size: int) -> int:
    """How many log-probs of each place tell what the filters let through.

    SGLang's log-probs know the temperature, not the filters. Never more than there are tokens:
    the server would exit.
    """
    sampling = request.sampling
    if sampling.is_greedy or not (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0):
        return 0
    return min(sampling.top_k or most, vocab_size)


def read_answer(
    answer: Mapping[str, Any], request: GenerationRequest, facts: ServerFacts, vocab_size: int
) -> Answer:
    """The tokens are read beside their log-probs, so that the two can never shift."""
    try:
        meta = answer["meta_info"]
        finish = meta["finish_reason"] or {"type": "abort"}  # none yet: the middle of a stream
        entries = meta.get("output_token_logprobs") or []
        tops = meta.get("output_top_logprobs")
        ids = [int(entry[1]) for entry in entries]
        log_probs = [float(entry[0]) for entry in entries]
        matched = finish.get("matched")
        if isinstance(matched, str) and matched not in request.stop_strings:
            raise EngineError(f"SGLang broke off a turn after {len(ids)} tokens: {matched}")
        if finish["type"] != "abort" and ids != list(answer["output_ids"]):
            raise EngineError(
                f"the server sent log-probs for the tokens {ids[:9]}..., but the tokens "
                f"{answer['output_ids'][:9]}..."
            )
        slack = 0.0
        if tops is not None:
            masses = [_log_mass(top, request, facts, vocab_size) for top in tops[: len(ids)]]
            pairs = zip(log_probs, masses, strict=True)
            log_probs = [min(own - mass.middle, 0.0) for own, mass in pairs]
            slack = max((mass.slack for mass in masses), default=0.0)
        version = meta.get("weight_version")
        return Answer(ids, log_probs, finish["type"], matched, version, slack)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineError(
            f"this is no answer of SGLang's /generate ({error!r}): {str(answer)[:200]}"
        ) from error


def _log_mass(
    top: Sequence[Sequence[Any]], request: GenerationRequest, facts: ServerFacts, vocab_size: int
) -> LogMass:
    # Only flashinfer's min-p kernel renormalises after top-k, before it looks at top-p.
    is_joint = facts.sampling_backend == "pytorch" or request.sampling.min_p == 0.0
    return kept_log_mass(
        [entry[0] for entry in top], request.sampling, vocab_size, is_joint=is_joint
    )


def scoring_body(ids: Sequence[int], start: int, rid: str) -> dict[str, Any]:
    """Ask for the log-probs of `ids[start:]`; the one token that it samples costs no step."""
    return {
        "rid": rid,
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        # The first place asked for has no log-prob, whatever stands before it.
        "logprob_start_len": start - 1,
    }


def read_scores(answer: Mapping[str, Any], num_scores: int) -> list[float]:
    entries = answer.get("meta_info", {}).get("input_token_logprobs") or []
    scores = [entry[0] for entry in entries[1:]]
    if len(scores) != num_scores or None in scores:
        raise EngineError(f"expected {num_scores} log-probs of the prompt, got {scores[:9]}...")
    return scores


def join_chunks(before: Mapping[str, Any] | None, chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer so far, after another chunk of a stream.

    A chunk holds everything from the beginning, or only what is new if the server was started
    with `--incremental-streaming-output`.
    """
    meta = chunk["meta_info"]
    entries = meta.get("output_token_logprobs", [])
    if before is None or len(entries) >= meta["completion_tokens"]:
        return chunk
    keys = ("output_token_logprobs", "output_top_logprobs")
    old = before["meta_info"]
    joined = {key: [*old[key], *meta[key]] for key in keys if key in meta}
    ids = [*before["output_ids"], *chunk["output_ids"]]
    return {**chunk, "output_ids": ids, "meta_info": {**meta, **joined}}
