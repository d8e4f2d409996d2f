"""An engine without a model: a Python function or random tokens answer."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from turnwise.chat.encoding import encode_text
from turnwise.inference.base import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
)

Policy: TypeAlias = Callable[[str], str] | str
"""A function from the prompt's text to the answer, or one fixed answer."""


class ScriptedEngine(BaseInferenceEngine):
    """Answers with what `policy` returns, to try environments and rewards without a model.

    `policy` gets the decoded prompt, or is the answer itself. Without one, answers are random
    tokens. Log-probs are 0 for a policy and those of the uniform distribution for random tokens.
    """

    context_length = 2**31  # unlimited

    def __init__(self, tokenizer: Any, policy: Policy | None = None) -> None:
        super().__init__(tokenizer)
        self._policy = policy

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        ids: list[int] = []
        if self._policy is None:
            rng = random.Random(request.seed)
            while len(ids) < request.max_tokens and not (ids and ids[-1] in request.stop_ids):
                ids.append(rng.randrange(len(self.tokenizer)))
        else:
            answer = self._policy
            if not isinstance(answer, str):
                prompt_ids = list(request.prompt_ids)
                answer = answer(self.tokenizer.decode(prompt_ids, skip_special_tokens=False))
            ends, end = sorted(request.stop_ids), self.tokenizer.eos_token_id
            ids = [*encode_text(self.tokenizer, answer), *([end] if end in ends else ends[:1])]
        kept = ids[: request.max_tokens]
        is_stopped = bool(kept) and kept[-1] in request.stop_ids
        reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        log_probs = await self.score(kept, 0)
        return GenerationResult(kept, log_probs, reason, self.weight_version)

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        """Return the log-probs that `sample` gives: 0, or those of the uniform distribution."""
        log_prob = -math.log(len(self.tokenizer)) if self._policy is None else 0.0
        return [log_prob] * (len(ids) - start)

    def update_weights(self, weights: Mapping[str, torch.Tensor] | None) -> int:
        """Count the version; there are no weights."""
        self.weight_version = self._next_version
        return self.weight_version
