"""VERL's rollout on a CPU: a server that samples with our own engine, and who sends it weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from turnwise.inference import (
    FinishReason,
    GenerationRequest,
    SamplingParams,
    create_inference_engine,
)
from turnwise.models import load_model


def server_name(replica_rank: int) -> str:
    return f"turnwise_server_{replica_rank}"


class CpuServer:
    """A Ray actor that holds the model and samples many conversations at once."""

    def __init__(self, model_path: str, trust_remote_code: bool) -> None:
        loaded = load_model(
            model_path, dtype="float32", device="cpu", trust_remote_code=trust_remote_code
        )
        self._engine = create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer)
        self._global_steps: int | None = None

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        **_: Any,
    ) -> TokenOutput:
        """Sample one turn."""
        params = sampling_params
        request = GenerationRequest(
            list(prompt_ids),
            params["max_tokens"],
            SamplingParams(
                params.get("temperature", 1.0),
                max(params.get("top_k", 0), 0),  # VERL writes "all" as -1
                params.get("top_p", 1.0),
            ),
            stop_ids=frozenset(params.get("stop_token_ids", ())),
            stop_strings=tuple(params.get("stop", ())),
            seed=params.get("seed", 0),
        )
        result = await self._engine.sample(request)
        is_cut = result.finish_reason is FinishReason.ABORTED
        return TokenOutput(
            token_ids=list(result.ids),
            log_probs=list(result.log_probs),
            stop_reason="aborted" if is_cut else "completed",
            extra_fields={"global_steps": self._global_steps},
        )

    async def update_weights(
        self, weights: dict[str, torch.Tensor], global_steps: int | None
    ) -> None:
        """Sample from these from now on."""
        # What comes out of Ray's store is read-only; the model copies it into its own.
        await asyncio.to_thread(self._engine.update_weights, weights)
        self._global_steps = global_steps

    async def ready(self) -> None:
        """Returns when the model is loaded."""

    # The model stays where it is between the rollouts: there is no device memory to share.
    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def release_kv_cache(self) -> None: ...

    async def resume_kv_cache(self) -> None: ...

    async def abort_all_requests(self, reject_request: bool = False) -> None: ...

    async def resume_generation(self) -> None: ...

    async def start_profile(self, **_: Any) -> None: ...

    async def stop_profile(self) -> None: ...


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """One server for each learner worker, as VERL counts them."""

    async def launch_servers(self) -> None:
        actor = ray.remote(CpuServer).options(
            name=server_name(self.replica_rank), num_cpus=0, max_concurrency=self.max_concurrency
        )
        model = self.model_config
        server: Any = actor.remote(model.path, model.trust_remote_code)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank)


class CpuWeightSender(BaseRollout):  # type: ignore[misc]
    """The rollout's side of a learner worker: hands the weights to its server."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        # Making a tensor whole is a collective: all workers walk through, the leader sends.
        whole = {name: tensor.detach() for name, tensor in weights}
        num_workers = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        replica_rank, place = divmod(int(os.environ["RANK"]), num_workers)
        if place == 0:
            server = ray.get_actor(server_name(replica_rank))
            await server.update_weights.remote(whole, global_steps)

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...
