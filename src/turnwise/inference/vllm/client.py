"""vLLM as a server: an engine that speaks tokens with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from turnwise.errors import ConfigError
from turnwise.inference.base import BaseInferenceEngine, Overflow
from turnwise.inference.protocol import FinishReason, GenerationRequest, GenerationResult
from turnwise.inference.sampling import SamplingParams
from turnwise.inference.vllm.http import ServerError
from turnwise.inference.vllm.loop import Gate, LoopThread
from turnwise.inference.vllm.server import NotThereError, VLLMServer
from turnwise.inference.vllm.translate import (
    check_ids,
    check_scored,
    sampling_arguments,
    scoring_arguments,
)
from turnwise.inference.vllm.weights import (
    NewWeights,
    Skeleton,
    existing_folder,
    written_folder,
)

T = TypeVar("T")


class VLLMServerEngine(BaseInferenceEngine):
    """A vLLM server at `url`, started for instance with

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs

    The mode makes log-probs those of the distribution that was sampled from; the variable opens
    the calls that update weights. New weights go through a folder that the server must see too:
    `weights_folder`, by default one for temporary files on this machine. One engine should own a
    server's weights: it counts its own updates, not those of others.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Any = None,
        overflow: Overflow = "truncate",
        api_key: str | None = None,
        vocabulary_size: int | None = None,
        weights_folder: str | Path | None = None,
        update_timeout: float = 600.0,
    ) -> None:
        if isinstance(tokenizer, str | Path):
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        super().__init__(tokenizer, overflow)
        self._weights_folder = None if weights_folder is None else Path(weights_folder)
        self._update_timeout = update_timeout
        self._server = VLLMServer(url, api_key)
        self._gate = Gate()
        self._asking_mode = asyncio.Lock()
        self._gives_processed: bool | None = None
        self._failure: str | None = None
        self._is_closed = False
        # A loop of our own: the caller's may be blocked by an update that waits for turns.
        self._thread = LoopThread("turnwise: vLLM client")
        try:
            card = self._thread.submit(self._server.find_model(model)).result()
        except BaseException:
            self.close()
            raise
        self.model: str = card["id"]
        """The name that the server has for the model."""
        self._root = Path(card.get("root") or "")
        self._context_length = int(card["max_model_len"])
        self._vocabulary_size = vocabulary_size or self._seen_vocabulary_size()

    @property
    def context_length(self) -> int:
        return self._context_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        self._check_ids(request.prompt_ids)
        room = self.room(request)
        return await self._in_thread(self._sample(request, room))

    async def score(self, ids: Sequence[int], start: int) -> list[float]:
        self._check_ids(ids)
        check_scored(ids, start, self.context_length)
        if start == len(ids):
            return []
        return (await self._in_thread(self._score(list(ids))))[start - 1 :]

    def update_weights(self, weights: NewWeights) -> int:
        """Take new weights in place, from tensors by their Hugging Face names or from a folder.

        Turns under way are finished first, on the old weights.
        """
        if weights is None:
            raise ConfigError(
                "a server has weights of its own, so it must be given the new ones: "
                "update_weights(model.state_dict()), or the path of a folder that it sees"
            )
        skeleton = self._skeleton
        if not isinstance(weights, Mapping):
            folder = existing_folder(weights)
            if skeleton is not None:
                skeleton.check_folder(folder)
            return self._thread.submit(self._update(folder)).result()
        if skeleton is not None:
            skeleton.check(weights)
            weights = skeleton.as_files_have_them(weights)
        with written_folder(weights, self._weights_folder) as folder:
            return self._thread.submit(self._update(folder)).result()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._thread.close()

    async def _in_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            coroutine.close()
            raise RuntimeError("this engine is closed. Make a new one.")
        return await asyncio.wrap_future(self._thread.submit(coroutine))

    async def _sample(self, request: GenerationRequest, room: int) -> GenerationResult:
        ids: list[int] = []
        log_probs: list[float] = []
        version = self.weight_version
        try:
            async with asyncio.timeout(request.timeout), self._gate.turn():
                self._check_works()
                version = self.weight_version
                reason = FinishReason.CONTEXT
                if room:
                    await self._check_mode(request)
                    reason = await self._stream(request, room, ids, log_probs)
        except TimeoutError:
            reason = FinishReason.DEADLINE
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            reason = FinishReason.ABORTED
        return GenerationResult(ids, log_probs, reason, version)

    async def _stream(
        self, request: GenerationRequest, room: int, ids: list[int], log_probs: list[float]
    ) -> FinishReason:
        """Sample, adding tokens as they come: a turn that is cut short keeps what it has."""
        body = {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            **sampling_arguments(request, room),
            "stop": list(request.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
            # Only a turn with a deadline may have to do with what has come.
            "stream_interval": 1 if request.timeout is not None else 64,
        }
        async for choice in self._server.stream(body):
            if choice["token_ids"]:
                ids += choice["token_ids"]
                log_probs += choice["logprobs"]["token_logprobs"]
            if choice["finish_reason"] is not None:
                return _reason(choice["finish_reason"], len(ids) >= request.max_tokens)
        raise ServerError("the server ended a turn without saying why")

    async def _score(self, ids: list[int]) -> list[float]:
        prompt, arguments = scoring_arguments(ids)
        body = {"model": self.model, "prompt": prompt, **arguments}
        body["return_tokens_as_token_ids"] = True
        async with self._gate.turn():
            self._check_works()
            choice = await self._server.complete(body)
        known = zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
        scores = [at[str(token)]["logprob"] for at, token in known]
        return [*scores, choice["logprobs"]["top_logprobs"][0][f"token_id:{ids[-1]}"]]

    async def _check_mode(self, request: GenerationRequest) -> None:
        """Log-probs must be those of what is sampled from; that is a setting of the server.

        With a single token to choose from its log-prob is 0, unless it is that of the model.
        """
        sampling = request.sampling
        if sampling.is_greedy or sampling == SamplingParams():
            return  # these are the model's own in either case
        async with self._asking_mode:
            if self._gives_processed is None:
                sure = GenerationRequest(request.prompt_ids[:1], 1, SamplingParams(top_k=1))
                log_probs: list[float] = []
                await self._stream(sure, 1, [], log_probs)
                self._gives_processed = log_probs[0] == 0.0
        if not self._gives_processed:
            raise ConfigError(
                "the server gives log-probs before temperature and filters are applied, and "
                "training needs those after. Start it with --logprobs-mode processed_logprobs"
            )

    async def _update(self, folder: Path) -> int:
        async with asyncio.timeout(self._update_timeout), self._gate.update():
            self._check_works()
            try:
                await self._server.load_weights(folder)
            except NotThereError:
                raise  # it does not take weights, and has its old ones
            except Exception as error:
                self._failure = (
                    f"the server did not load the new weights in {folder}, and may have lost the "
                    f"old ones. Does it see this folder? If not, set weights_folder. {error}"
                )
                raise ServerError(self._failure) from error
            self.weight_version += 1
            return self.weight_version

    def _check_ids(self, ids: Sequence[int]) -> None:
        if self._vocabulary_size is not None:
            check_ids(ids, self._vocabulary_size)

    def _check_works(self) -> None:
        if self._failure is not None:
            raise ServerError(self._failure)

    def _seen_vocabulary_size(self) -> int | None:
        """If the model's folder is seen from here; the server looks at the tokens in any case."""
        if not self._is_root_seen:
            return None
        config = json.loads((self._root / "config.json").read_text())
        size: int | None = config.get("text_config", config).get("vocab_size")
        return size

    @cached_property
    def _skeleton(self) -> Skeleton | None:
        """What weights the model has, if its folder is seen from here."""
        return Skeleton(str(self._root), trust_remote_code=False) if self._is_root_seen else None

    @property
    def _is_root_seen(self) -> bool:
        return (self._root / "config.json").is_file()


def _reason(word: str, is_full: bool) -> FinishReason:
    if word == "stop":
        return FinishReason.STOP
    if word == "length":
        return FinishReason.LENGTH if is_full else FinishReason.CONTEXT
    if word == "abort":
        return FinishReason.ABORTED
    raise ServerError(f"vLLM ended a turn for a reason of its own: {word}")
