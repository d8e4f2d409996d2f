"""`RemoteLearner`: a proxy of the learner whose updates run in a group of workers."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from turnwise.algo import Algorithm
from turnwise.config import ConfigStore
from turnwise.errors import import_extra
from turnwise.learner import LearnerOptions, Outputs, PolicyValueModel, PPOBatch
from turnwise.learner.base import (
    BaseLearner,
    LearnerState,
    ReadShard,
    placed_weights,
    trained_parameters,
)
from turnwise.learner.sharding import join_shards, split_shards
from turnwise.models.empty import is_empty
from turnwise.scale.ray.cluster import (
    SECONDS_BETWEEN_CALLS,
    SECONDS_TO_ANSWER,
    Cluster,
    Failures,
    WorkerLost,
    is_loss,
    own_error,
)
from turnwise.scale.ray.learner_worker import LearnerWorker, state_arrays
from turnwise.scale.ray.transfer import ModelSource, lazy_tensors, log_for, to_arrays
from turnwise.trainer.learning import policy_weights

ray = import_extra("ray", "ray")

RemoteCall: TypeAlias = Callable[[Any, int], Any]
"""Calls a method of an actor that has this rank."""

_SECONDS_TO_DIE = 20.0
"""Until Ray reports a dead learner, which its peers notice earlier."""
_MAX_REPLAYED = 10
"""Updates that are repeated at most after a loss. A state is several times as large as the weights,
and sending it can take longer than an update; the batches are small."""


class LearnerGroup:
    """Learner workers that form a torch.distributed group.

    A group with a dead member cannot continue: all workers are replaced and load the last states
    from the object store; they repeat the updates since, and the call that was interrupted.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConfigStore,
        source: ModelSource,
        algorithm: Algorithm,
        failures: Failures,
    ) -> None:
        self.num_workers = settings.ray.num_learners
        self.context_size = settings.ray.context_parallel_size
        """Adjacent workers that split the tokens of each pack, and so have the same episodes."""
        self._states: Sequence[Any] | None = None
        """The states from which a new group starts, a shard for each worker."""
        self._is_whole = False
        """Whether the states are all that the workers have to load."""
        self._updates: list[RemoteCall] = []
        """The updates since those states."""
        self._cluster = cluster
        self._settings = settings
        self._source = ray.put(source)
        self._algorithm = algorithm
        self._failures = failures
        self._actors: list[Any] = []

    def pids(self) -> list[int]:
        pids: list[int] = ray.get(self._pings(), timeout=SECONDS_TO_ANSWER)
        return pids

    def load(self, states: Sequence[Any], *, is_whole: bool = True) -> None:
        """Load a state, a shard into each worker, or what differs from the state of the start."""
        self._states, self._updates, self._is_whole = states, [], is_whole
        self.call_all(lambda actor, rank: actor.load.remote(states[rank]))

    def learn(self, call: RemoteCall) -> list[Any]:
        """Run an update on every worker, and remember it for a replacement."""
        references = self.call_all(call)
        self._updates.append(call)
        if len(self._updates) >= _MAX_REPLAYED:
            self.states()
        return references

    def states(self) -> Sequence[Any]:
        """Return the object references of their states, a shard of each."""
        if self._updates or not self._is_whole:
            self._states = self.call_all(lambda actor, rank: actor.state.remote())
            self._updates, self._is_whole = [], True
        assert self._states is not None
        return self._states

    def call_all(self, call: RemoteCall) -> list[Any]:
        """Call every worker, and return the result references when all are done."""
        while True:
            try:
                if not self._actors:
                    self._start()
                references = [call(actor, rank) for rank, actor in enumerate(self._actors)]
                self._wait(references)
            except WorkerLost as loss:
                self._failures.record("a learner", loss)
                self.close()
            else:
                self._failures.reset()
                return references

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = []

    def _start(self) -> None:
        # A liveness check must not wait for an update.
        make = ray.remote(concurrency_groups={"liveness": 1})(LearnerWorker)
        for rank in range(self.num_workers):
            options = self._cluster.actor_options(rank)
            self._actors.append(make.options(**options).remote(rank, self.num_workers))
        address = None
        if self.num_workers > 1:
            opened = self._actors[0].open.remote()
            self._wait([opened])
            address = ray.get(opened)
        joined = [
            actor.join.remote(address, self._settings, self._source, self._algorithm)
            for actor in self._actors
        ]
        self._wait(joined)
        if self._states is not None:
            pairs = zip(self._actors, self._states, strict=True)
            self._wait([actor.load.remote(state) for actor, state in pairs])
        for call in self._updates:
            self._wait([call(actor, rank) for rank, actor in enumerate(self._actors)])

    def _wait(self, references: Sequence[Any]) -> None:
        """Wait until all are done; raises `WorkerLost` if a worker is gone or does not answer."""
        flat = [r[0] if isinstance(r, list) else r for r in references]
        waiting = list(flat)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=SECONDS_BETWEEN_CALLS)
            for reference in done:
                try:
                    ray.get(reference)
                except Exception as error:
                    if is_loss(error):
                        raise WorkerLost(str(error)) from error
                    self._check_liveness(_SECONDS_TO_DIE)
                    raise own_error(error) from None
            if not done:
                self._check_liveness(SECONDS_TO_ANSWER)

    def _check_liveness(self, seconds: float) -> None:
        try:
            ray.get(self._pings(), timeout=seconds)
        except Exception as error:
            raise WorkerLost(f"it is gone or does not answer: {error}") from error

    def _pings(self) -> list[Any]:
        return [actor.ping.options(concurrency_group="liveness").remote() for actor in self._actors]


class RemoteLearner(BaseLearner):
    """Does what `Learner` does, in a group of workers.

    Checkpoints pass through this process shard by shard. `model` may be one without weights
    (`load_empty_model`), and stays so; one that has weights gets the workers' when it is read, and
    with every checkpoint.
    """

    def __init__(
        self, model: PolicyValueModel, options: LearnerOptions, *, group: LearnerGroup
    ) -> None:
        super().__init__(options)
        self.group = group
        self._model = model
        self._is_stale = False
        """Whether the workers have other weights than a model that has some."""
        self._must_send = True
        """Whether the workers do not have the weights of the model yet."""
        self._policy: tuple[Any, ...] | None = None

    @property
    def model(self) -> PolicyValueModel:
        if self._is_stale:
            self._fetch_weights()
        return self._model

    def policy_objects(self) -> tuple[Any, ...]:
        if self._policy is None and self._must_send and not is_empty(self._model):
            self._policy = (ray.put(to_arrays(policy_weights(self))),)  # an evaluation ends so
        if self._policy is None:
            self._send_weights()
            self._policy = tuple(self.group.call_all(lambda actor, rank: actor.policy.remote()))
        return self._policy

    def score(self, batch: PPOBatch) -> Outputs:
        return Outputs(*self._score("score", batch))

    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        log_probs: torch.Tensor = self._score("reference_log_probs", batch)[0]
        return log_probs

    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        sums: torch.Tensor = self._score("sum_pi_squared", batch)[0]
        return sums

    def update(self, batch: PPOBatch) -> dict[str, float]:
        return self._learn("update", batch)

    def imitate(self, batch: PPOBatch, learning_rate: float | None = None) -> dict[str, float]:
        return self._learn("imitate", batch, learning_rate)

    def restart(self) -> None:
        self._send_weights()
        self.group.learn(lambda actor, rank: actor.call.remote("restart"))

    def state_layout(self) -> LearnerState:
        self._send_weights()
        layouts = self.group.call_all(lambda actor, rank: actor.call.remote("state_layout"))
        shards = ray.get(layouts)
        return LearnerState(
            join_shards([shard.weights for shard in shards]),
            join_shards([shard.rest for shard in shards]),
        )

    def state_shards(self) -> Iterator[LearnerState]:
        self._send_weights()
        if self._is_stale:
            self._fetch_weights()
        for shard in self.group.states():
            yield LearnerState(*map(lazy_tensors, ray.get(shard)))

    def load_state_shards(self, read: ReadShard) -> None:
        number = self.group.num_workers
        self.group.load([ray.put(state_arrays(read(rank, number))) for rank in range(number)])
        self._must_send = False
        self._changed(None)

    def _learn(self, *call: Any) -> dict[str, float]:
        """Call a method of every worker's learner: its name, the batch, and other arguments."""
        self._send_weights()
        shared, options = ray.put(call), self.options
        references = self.group.learn(
            lambda actor, rank: actor.learn.options(num_returns=2).remote(shared, options)
        )
        outputs = ray.get([reference for reference, _ in references])
        self._changed(tuple(policy for _, policy in references))
        for rank, (_, _, lines) in enumerate(outputs):
            log_for(f"learner {rank}", lines)
        # All workers report the same metrics: those of the whole batch.
        metrics: dict[str, float] = outputs[0][0]
        self.log_probs_before_update = torch.tensor(outputs[0][1])  # Ray's array is read-only
        return metrics

    def _score(self, method: str, batch: PPOBatch) -> list[Any]:
        """Call a method of every worker with its share of the episodes; join what they return."""
        self._send_weights()
        size = self.group.context_size
        shares = torch.arange(len(batch)).tensor_split(self.group.num_workers // size)
        batches = [ray.put(batch.select(rows)) for rows in shares]
        references = self.group.call_all(
            lambda actor, rank: actor.score.remote(method, batches[rank // size])
        )
        columns = zip(*ray.get(references[::size]), strict=True)
        present = [[grid for grid in grids if grid is not None] for grids in columns]
        return [torch.cat(grids) if grids else None for grids in present]

    def _send_weights(self) -> None:
        """Send the workers what they do not load themselves: all weights of a model that has some,
        else those of adapters and critic."""
        if self._must_send:
            self._must_send = False
            parameters = trained_parameters(self._model)
            known = {name: p.detach() for name, p in parameters.items() if not p.is_meta}
            shards = split_shards(known, self.group.num_workers)
            states = [ray.put(state_arrays(LearnerState(shard, {}))) for shard in shards]
            self.group.load(states, is_whole=False)

    def _changed(self, policy: tuple[Any, ...] | None) -> None:
        """Note that the workers have new weights; `policy` are their shards, if known."""
        self._policy = policy
        self._is_stale = not is_empty(self._model)

    @torch.no_grad()
    def _fetch_weights(self) -> None:
        self._is_stale = False
        parameters = trained_parameters(self._model)
        for name, rows, tensor in placed_weights(self):
            (parameters[name][rows] if tensor.dim() else parameters[name]).copy_(tensor)
