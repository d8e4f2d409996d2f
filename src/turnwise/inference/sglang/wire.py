"""SGLang's wire format: request bodies and responses.

Written after the source of 0.5.23, and checked against exchanges recorded from a 0.5.17 server. The
same bodies go to `/generate` as JSON and to `sglang.Engine.async_generate` as arguments.
"""

from __future__ import annotations

import base64
import io
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import torch
import torch.multiprocessing  # teaches the pickler to send handles of tensors

from turnwise.errors import EngineError
from turnwise.inference.base import GenerationRequest
from turnwise.inference.sampling import SamplingParams
from turnwise.inference.weights import GroupAddress, gpu_ids, tensor_specs

_reductions = cast(Any, torch.multiprocessing).reductions
_DEVICE = 6
"""The position of the GPU among what torch rebuilds a tensor from."""


@dataclass(frozen=True)
class LogMass:
    """Bounds for the log of a probability mass; equal if it is known exactly."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def slack(self) -> float:
        return (self.high - self.low) / 2


def kept_log_mass(
    top: Sequence[float], params: SamplingParams, vocab_size: int, *, is_joint: bool
) -> LogMass:
    """Return the log of the mass that the filters keep, from the top log-probs in falling order.

    SGLang reports log-probs after the temperature and before top-k, top-p and min-p; it samples
    from what these keep, renormalised. `is_joint`: top-p applies to the whole distribution even
    with top-k, otherwise to what top-k kept. If all of `top` is kept and there are more tokens,
    their mass is bounded: top-p overshoots by less than the last token that it keeps, which is no
    more likely than the last one that is known.
    """
    limit = min(params.top_k or vocab_size, vocab_size)
    probs = [math.exp(log_prob) for log_prob in top[:limit]]
    whole = sum(probs) if params.top_k and not is_joint else 1.0
    mass = 0.0
    for prob in probs:
        if mass > params.top_p * whole or prob < params.min_p * probs[0]:
            return LogMass(math.log(mass), math.log(mass))
        mass += prob
    if len(probs) == limit or mass > params.top_p * whole:
        return LogMass(math.log(mass), math.log(mass))
    high = min(params.top_p + probs[-1], 1.0)
    low = max(mass, params.top_p) if params.min_p == 0.0 else mass
    return LogMass(math.log(low), math.log(max(low, high)))


@dataclass(frozen=True)
class ServerFacts:
    """What an SGLang reports about itself."""

    max_input_length: int
    """Longest input, in tokens."""
    is_deterministic: bool
    """Started with `--enable-deterministic-inference`: seeds work, min-p does not."""
    sampling_backend: str
    model_paths: list[str]
    """Where its model was loaded from, the most reliable first."""
    num_workers: int = 1
    """GPUs over which the model is split."""

    @classmethod
    def read(cls, info: Mapping[str, Any]) -> ServerFacts:
        """Read `/server_info`, updated with `/model_info` if there is one."""
        try:
            return cls(
                max_input_length=info["max_req_input_len"] - 1,  # the limit itself is refused
                is_deterministic=bool(info["enable_deterministic_inference"]),
                sampling_backend=str(info["sampling_backend"]),
                model_paths=[str(info["model_path"]), str(info["tokenizer_path"])],
                num_workers=int(info.get("tp_size", 1)),
            )
        except KeyError as error:
            raise EngineError(
                f"the server's description lacks {error}: SGLang 0.5.17 or later was expected"
            ) from None


@dataclass(frozen=True)
class Response:
    """The response to one request."""

    ids: list[int]
    log_probs: list[float]
    """Under the distribution after the filters."""
    finish: str
    """stop, length or abort."""
    matched: int | str | None
    """The stop token or the stop string."""
    slack: float
    """Largest error of a log-prob, if the filters keep more tokens than were listed."""


NO_RESPONSE = Response([], [], "abort", None, 0.0)
"""For a request that was aborted before there was a response."""


def generation_body(
    request: GenerationRequest, prompt_ids: Sequence[int], max_tokens: int, rid: str, num_top: int
) -> dict[str, Any]:
    """Return a request for tokens with their log-probs, and the top `num_top` at each position."""
    sampling: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "top_k": request.sampling.top_k or -1,
        "min_p": request.sampling.min_p,
        "sampling_seed": request.seed % 2**63,
        # If set, the model's own end tokens are ignored, but so are ours.
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
    """Return how many top log-probs per position determine what the filters keep.

    Never more than the vocabulary: the server would exit.
    """
    sampling = request.sampling
    if sampling.is_greedy or not (sampling.top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0):
        return 0
    return min(sampling.top_k or most, vocab_size)


def read_response(
    answer: Mapping[str, Any], request: GenerationRequest, facts: ServerFacts, vocab_size: int
) -> Response:
    """Read a response; ids and log-probs come from the same entries, so that they stay aligned."""
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
            sampling = request.sampling
            # Only flashinfer's min-p kernel renormalises after top-k, before it looks at top-p.
            is_joint = facts.sampling_backend == "pytorch" or sampling.min_p == 0.0
            masses = [
                kept_log_mass([entry[0] for entry in top], sampling, vocab_size, is_joint=is_joint)
                for top in tops[: len(ids)]
            ]
            pairs = zip(log_probs, masses, strict=True)
            log_probs = [min(log_prob - mass.middle, 0.0) for log_prob, mass in pairs]
            slack = max((mass.slack for mass in masses), default=0.0)
        return Response(ids, log_probs, finish["type"], matched, slack)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EngineError(
            f"this is no answer of SGLang's /generate ({error!r}): {str(answer)[:200]}"
        ) from error


def scoring_body(ids: Sequence[int], start: int, rid: str) -> dict[str, Any]:
    """Return a request for the log-probs of `ids[start:]`; its one sampled token costs no step."""
    return {
        "rid": rid,
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "return_logprob": True,
        # The first position of the range has no log-prob.
        "logprob_start_len": start - 1,
    }


def read_scores(answer: Mapping[str, Any], num_scores: int) -> list[float]:
    entries = answer.get("meta_info", {}).get("input_token_logprobs") or []
    scores = [entry[0] for entry in entries[1:]]
    if len(scores) != num_scores or None in scores:
        raise EngineError(f"expected {num_scores} log-probs of the prompt, got {scores[:9]}...")
    return scores


def group_body(address: GroupAddress) -> dict[str, Any]:
    """Return a request to join the learner's process group."""
    return {
        "master_address": address.host,
        "master_port": address.port,
        "rank_offset": 1,
        "world_size": address.world_size,
        "group_name": address.name,
        "backend": address.backend,
    }


def broadcast_body(address: GroupAddress, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return a request to receive these weights from the learner's process group."""
    names, dtypes, shapes = zip(*tensor_specs(weights), strict=True)
    return {
        "names": list(names),
        "dtypes": list(dtypes),
        "shapes": list(shapes),
        "group_name": address.name,
        "flush_cache": True,
    }


def tensor_body(weights: Mapping[str, torch.Tensor], num_workers: int) -> dict[str, Any]:
    """Return a request to read weights from the memory of the learner's GPU."""
    payloads = serialized(weights, num_workers)
    return {
        "serialized_named_tensors": [base64.b64encode(each).decode() for each in payloads],
        "flush_cache": True,
    }


def serialized(weights: Mapping[str, torch.Tensor], num_workers: int) -> list[bytes]:
    """Return named tensors as SGLang reads them: pickled, with handles instead of values.

    Each worker gets its own handles, since torch counts those that are in use.
    """
    named = [(name, tensor.detach()) for name, tensor in weights.items()]
    buffers = [io.BytesIO() for _ in range(num_workers)]
    for buffer in buffers:
        _HandlePickler(buffer, pickle.HIGHEST_PROTOCOL).dump(named)
    return [buffer.getvalue() for buffer in buffers]


class _HandlePickler(ForkingPickler):
    """Names a GPU by its hardware id, as SGLang does: its workers may number GPUs otherwise."""

    def reducer_override(self, value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_cuda):
            return NotImplemented
        rebuild, arguments = _reductions.reduce_tensor(value)
        device = arguments[_DEVICE]
        name = gpu_ids()[device] if isinstance(device, int) else device
        return rebuild, (*arguments[:_DEVICE], name, *arguments[_DEVICE + 1 :])
