"""Plays our episodes inside VERL's agent loop: VERL's servers sample, `Episode` does the rest."""

from __future__ import annotations

import copy
import logging
from functools import lru_cache
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from turnwise.episode import Episode, EpisodeResult, EpisodeTask, make_setup
from turnwise.episode.collector import EpisodeFailed
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.scale.verl.batch_rewards import TRAJECTORY
from turnwise.scale.verl.episode_components import EpisodeComponents, unpack
from turnwise.scale.verl.server_engine import ServerEngine
from turnwise.scale.verl.targets import OWN_SECTION

_LOG = logging.getLogger("turnwise")

TOKEN_REWARDS = "token_rewards"
"""One number for each token of the response, among the extra fields of an output."""
FAILED = "failed_episode"
"""Why an episode could not be played, or None."""


class EpisodeOutput(AgentLoopOutput):  # type: ignore[misc]  # VERL ships no types
    """VERL's output, with each turn's reward on the token where it was earned."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as VERL's V1 trainer stores it."""
        fields: dict[str, Any] = super().as_dict()
        rewards = fields["extra_fields"].pop(TOKEN_REWARDS)
        fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


class EpisodeAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode, again if it fails and `training.on_error` is retry."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> EpisodeOutput:
        packed = self.config[OWN_SECTION].components
        components = unpack(packed)
        row = kwargs["extra_info"]
        for attempt in range(1, components.num_tries + 1):
            engine = ServerEngine(
                self.server_manager,
                self.rollout_config.name,
                self.rollout_config.prompt_length,
                self.rollout_config.response_length,
                self.tokenizer,
            )
            setup = copy.copy(_setup(packed, self.tokenizer))
            setup.engine = engine
            setup.seed = row["sampling_seed"]
            setup.sampling = _sampling(sampling_params)
            task = EpisodeTask(
                row["seed"], row["index"], int(kwargs.get("session_id", 0)), task=row["task"]
            )
            result = await Episode(setup, components.factory, task, attempt=attempt).run()
            if engine.refusal is not None:
                raise engine.refusal
            if not result.status.is_error:
                break
            _LOG.warning("%s", result)
        # VERL's V1 trainer continues without an episode that raises.
        if result.status.is_error and (components.on_error == "fail" or self.config.trainer.use_v1):
            raise EpisodeFailed(
                f"the episode with seed {result.seed} failed: {result.status}: {result.error}"
            )
        output = self._output(result)
        if components.keeps_trajectories:
            output.extra_fields[TRAJECTORY] = result.trajectory
        return output

    def _output(self, result: EpisodeResult) -> EpisodeOutput:
        if len(result.agents) > 1:
            raise ConfigError(
                f"the environment has {len(result.agents)} players, and VERL trains one. "
                "Train with engine='local'."
            )
        agent = result.agent
        metrics = AgentLoopMetrics(
            generate_sequences=result.seconds.get("engine", 0.0),
            tool_calls=result.seconds.get("tools", 0.0),
            compute_score=result.seconds.get("reward", 0.0),
        )
        if agent.reward is None or not agent.turns:
            return _nothing(self.tokenizer, metrics, result)
        stream = agent.stream
        if stream.branches:
            raise ConfigError(
                "an episode has branches (limits.max_context_tokens), and VERL trains on one "
                "sequence of tokens. Leave the limit out, or train with engine='local'."
            )
        start, end = stream.turns[0][0], stream.turns[-1][1]
        mask = [int(is_sampled) for is_sampled in stream.mask[start:end]]
        return EpisodeOutput(
            prompt_ids=list(stream.ids[:start]),
            response_ids=list(stream.ids[start:end]),
            response_mask=mask,
            response_logprobs=[
                value if sampled else 0.0
                for value, sampled in zip(stream.log_probs[start:end], mask, strict=True)
            ],
            reward_score=agent.reward.total,
            num_turns=len(agent.turns),
            metrics=metrics,
            extra_fields={
                TOKEN_REWARDS: agent.token_rewards[start:end],
                FAILED: None,
                "reward_extra_info": {
                    "success": float(agent.trajectory.success),
                    "truncated": float(result.status.is_truncated),
                },
                "min_global_steps": agent.turns[0].weight_version,
                "max_global_steps": agent.turns[-1].weight_version,
            },
        )


@lru_cache(maxsize=4)
def _setup(packed: str, tokenizer: Any) -> Any:
    """Return the setup that all episodes of a process share; the chat format is made once."""
    components: EpisodeComponents = unpack(packed)
    return make_setup(
        ServerEngine(None, "", 0, 0, tokenizer),
        limits=components.limits,
        tools=components.tools,
        parser=components.parser,
        system_prompt=components.system_prompt,
        reward_fn=components.reward_fn,
    )


def _sampling(params: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        params["temperature"], max(params.get("top_k", 0), 0), params.get("top_p", 1.0)
    )


def _nothing(tokenizer: Any, metrics: Any, result: EpisodeResult) -> EpisodeOutput:
    """Return the output of a failed episode: one token, which is not trained on."""
    return EpisodeOutput(
        prompt_ids=[tokenizer.eos_token_id],
        response_ids=[tokenizer.eos_token_id],
        response_mask=[0],
        response_logprobs=[0.0],
        reward_score=0.0,
        metrics=metrics,
        extra_fields={
            TOKEN_REWARDS: [0.0],
            FAILED: f"{result.status}: {result.error}",
            "reward_extra_info": {"success": 0.0, "truncated": 0.0},
        },
    )
