"""Plays our episodes inside VERL's agent loop: VERL's servers sample, `Episode` does the rest.

VERL imports this module in each of its processes (`VERL_USE_EXTERNAL_MODULES`).

`EpisodeLoopManager` distributes the episodes of a step, `EpisodeAgentLoop` plays one of them in a
worker, and `ServerEngine` asks VERL's servers for its turns, tokens in, tokens out.
"""

import logging
from functools import lru_cache
from typing import Any

import numpy as np
import ray
import torch
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopManager,
    AgentLoopMetrics,
    AgentLoopOutput,
    AgentLoopWorker,
    register,
)

from turnwise.episode import Episode, EpisodeResult, EpisodeTask, make_setup
from turnwise.episode.collector import EpisodeFailed
from turnwise.errors import ConfigError, EngineError, TrainingStopped
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from turnwise.scale.verl.components import unpack
from turnwise.scale.verl.rewards import TRAJECTORY, BatchScorer, score_batch
from turnwise.scale.verl.settings import AGENT_LOOP, OWN_SECTION

_LOG = logging.getLogger("turnwise")

TOKEN_REWARDS = "token_rewards"
"""One number for each token of the response, among the extra fields of an output."""
FAILED = "failed_episode"
"""Why an episode could not be played, or None."""


class ServerEngine(BaseInferenceEngine):
    """VERL's inference servers as the engine of one episode.

    VERL stores prompt and response in tensors of fixed width: what follows the prompt has at most
    `response_length` tokens, however short the prompt was.
    """

    def __init__(
        self, client: Any, backend: str, prompt_length: int, response_length: int, tokenizer: Any
    ) -> None:
        super().__init__(tokenizer)
        self._client = client
        self._backend = backend
        self._prompt_length = prompt_length
        self._response_length = response_length
        self._prompt_tokens: int | None = None
        self.refusal: ConfigError | None = None
        """An error that every episode would have; the run ends with it."""

    @property
    def context_length(self) -> int:
        return (self._prompt_tokens or self._prompt_length) + self._response_length

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        length = len(request.prompt_ids)
        if self._prompt_tokens is None and length > self._prompt_length:
            self.refusal = ConfigError(
                f"the prompt of an episode has {length} tokens, and VERL was configured for at "
                f"most {self._prompt_length}. Set more: verl_overrides="
                f"['data.max_prompt_length={length + length // 2}']"
            )
        if request.stop_strings:
            self.refusal = ConfigError(
                "this model has no chat template, so its turns end with a text, and VERL's "
                "servers end them with tokens only. Take a model with a chat template."
            )
        if self.refusal is not None:
            raise self.refusal
        if self._prompt_tokens is None:
            self._prompt_tokens = length
        num_left = self.context_length - length
        max_tokens = min(request.max_tokens, num_left)
        params: dict[str, Any] = {
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "top_k": request.sampling.top_k or -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "stop_token_ids": sorted(request.stop_ids),
        }
        if self._backend == "sglang":  # it takes no seed for each request
            params["max_new_tokens"] = max_tokens
        else:
            params |= {"max_tokens": max_tokens, "seed": request.seed}
        output = await self._client.generate(
            request.session or f"turnwise-{request.seed}",
            prompt_ids=list(request.prompt_ids),
            sampling_params=params,
        )
        if output.log_probs is None:
            raise EngineError(
                "VERL's server gave no log-probs. Leave rollout.calculate_log_probs at true."
            )
        self.weight_version = int(output.extra_fields.get("global_steps") or 0)
        ids = list(output.token_ids)
        reason = FinishReason.STOP
        if output.stop_reason in ("aborted", "abort"):
            reason = FinishReason.ABORTED
        elif len(ids) >= max_tokens and not (ids and ids[-1] in request.stop_ids):
            reason = FinishReason.CONTEXT if max_tokens == num_left else FinishReason.LENGTH
        return GenerationResult(ids, list(output.log_probs), reason, self.weight_version)


class EpisodeOutput(AgentLoopOutput):  # type: ignore[misc]  # VERL ships no types
    """VERL's output, with each turn's reward on the token where it was earned."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as VERL's V1 trainer stores it."""
        fields: dict[str, Any] = super().as_dict()
        rewards = fields["extra_fields"].pop(TOKEN_REWARDS)
        fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


@lru_cache(maxsize=4)
def _setup(packed: str, tokenizer: Any) -> Any:
    """Return the setup that all episodes of a process share; the chat format is made once."""
    return make_setup(ServerEngine(None, "", 0, 0, tokenizer), unpack(packed).options)


@register(AGENT_LOOP)
class EpisodeAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode, again if it fails and `training.on_error` is retry."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> EpisodeOutput:
        packed = self.config[OWN_SECTION].components
        components = unpack(packed)
        row = kwargs["extra_info"]
        task = EpisodeTask(
            row["seed"], row["index"], int(kwargs.get("session_id", 0)), task=row["task"]
        )
        rollout = self.rollout_config
        for attempt in range(1, components.options.num_attempts + 1):
            engine = ServerEngine(
                self.server_manager,
                rollout.name,
                rollout.prompt_length,
                rollout.response_length,
                self.tokenizer,
            )
            sampling = SamplingParams(
                sampling_params["temperature"],
                max(sampling_params.get("top_k", 0), 0),  # VERL writes "all" as -1
                sampling_params.get("top_p", 1.0),
            )
            setup = _setup(packed, self.tokenizer).replaced(
                engine=engine, seed=row["sampling_seed"], sampling=sampling
            )
            result = await Episode(setup, components.factory, task, attempt=attempt).run()
            if engine.refusal is not None:
                raise engine.refusal
            if not result.status.is_error:
                break
            _LOG.warning("%s", result)
        # VERL's V1 trainer continues without an episode that raises.
        is_fatal = components.options.on_error == "fail" or self.config.trainer.use_v1
        if result.status.is_error and is_fatal:
            raise EpisodeFailed(
                f"the episode with seed {result.seed} failed: {result.status}: {result.error}"
            )
        output = EpisodeOutput(**self._fields(result))
        if components.keeps_trajectories:
            output.extra_fields[TRAJECTORY] = result.trajectory
        return output

    def _fields(self, result: EpisodeResult) -> dict[str, Any]:
        if len(result.agents) > 1:
            raise ConfigError(
                f"VERL trains one player, got {len(result.agents)}. Train with engine='local'."
            )
        agent = result.agent
        stream = agent.stream
        metrics = AgentLoopMetrics(
            generate_sequences=result.seconds.get("engine", 0.0),
            tool_calls=result.seconds.get("tools", 0.0),
            compute_score=result.seconds.get("reward", 0.0),
        )
        if agent.reward is None or not agent.turns:  # failed: one token, which is not trained on
            return {
                "prompt_ids": [self.tokenizer.eos_token_id],
                "response_ids": [self.tokenizer.eos_token_id],
                "response_mask": [0],
                "response_logprobs": [0.0],
                "reward_score": 0.0,
                "metrics": metrics,
                "extra_fields": {
                    TOKEN_REWARDS: [0.0],
                    FAILED: f"{result.status}: {result.error}",
                    "reward_extra_info": {"success": 0.0, "truncated": 0.0},
                },
            }
        if stream.branches:
            raise ConfigError(
                "an episode has branches, and VERL trains on one sequence of tokens. Leave "
                "limits.max_context_tokens out, or train with engine='local'."
            )
        start, end = stream.turns[0][0], stream.turns[-1][1]
        mask = [int(is_sampled) for is_sampled in stream.mask[start:end]]
        log_probs = zip(stream.log_probs[start:end], mask, strict=True)
        return {
            "prompt_ids": list(stream.ids[:start]),
            "response_ids": list(stream.ids[start:end]),
            "response_mask": mask,
            "response_logprobs": [value if sampled else 0.0 for value, sampled in log_probs],
            "reward_score": agent.reward.total,
            "num_turns": len(agent.turns),
            "metrics": metrics,
            "extra_fields": {
                TOKEN_REWARDS: agent.token_rewards[start:end],
                FAILED: None,
                "reward_extra_info": {
                    "success": float(agent.trajectory.success),
                    "truncated": float(result.status.is_truncated),
                },
                "min_global_steps": agent.turns[0].weight_version,
                "max_global_steps": agent.turns[-1].weight_version,
            },
        }


class EpisodeLoopWorker(AgentLoopWorker):  # type: ignore[misc]
    """Puts each turn's reward on that turn's last sampled token; VERL would sum them."""

    def _postprocess(self, inputs: list[Any], *args: Any, **kwargs: Any) -> Any:
        rewards = [output.extra_fields.pop(TOKEN_REWARDS) for output in inputs]
        data = super()._postprocess(inputs, *args, **kwargs)
        scores = torch.zeros_like(data.batch["rm_scores"])
        for row, earned in zip(scores, rewards, strict=True):
            row[: len(earned)] = torch.tensor(earned)
        data.batch["rm_scores"] = scores
        return data


class EpisodeLoopManager(AgentLoopManager):  # type: ignore[misc]
    """Numbers the members of a group, and excludes failed episodes from the update."""

    score: BatchScorer | None = None
    """Scores whole batches in this process; None: the episodes have their rewards already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(EpisodeLoopWorker)
        super().__init__(*args, **kwargs)

    def generate_sequences(self, prompts: Any) -> Any:
        uids = prompts.non_tensor_batch["uid"]
        members: dict[str, int] = {}
        numbers = np.zeros(len(uids), dtype=np.int64)
        for row, uid in enumerate(uids):
            numbers[row] = members.get(uid, 0)
            members[uid] = numbers[row] + 1
        prompts.non_tensor_batch["session_id"] = numbers
        output = super().generate_sequences(prompts)
        failed = output.non_tensor_batch.pop(FAILED)
        if self.score is not None:
            score_batch(self.score, output, prompts, failed)
        leave_out(output.batch, uids, failed, drops_groups=self.config.turnwise.drops_groups)
        return output


def leave_out(batch: Any, uids: Any, failed: Any, *, drops_groups: bool) -> None:
    """Exclude failed episodes from the update, and with `drops_groups` their whole groups.

    VERL needs every row that it asked for. A failed row has no token that is trained on, and gets
    the mean reward of the others in its group, so that it does not change the group's baseline.
    """
    is_failed = np.array([reason is not None for reason in failed])
    if not is_failed.any():
        return
    if is_failed.all():
        raise TrainingStopped(f"every episode of a step failed. The first: {failed[0]}")
    for uid in set(uids[is_failed]):
        members = uids == uid
        rest = members & ~is_failed
        mean = float(batch["rm_scores"][rest].sum(-1).mean()) if rest.any() else 0.0
        for row in np.flatnonzero(members & is_failed):
            batch["rm_scores"][row, 0] = mean
        if drops_groups:
            batch["response_mask"][members] = 0
