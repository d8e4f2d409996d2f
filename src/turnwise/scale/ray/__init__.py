"""The trainer on a Ray cluster: episodes and updates run in worker processes.

The loop, the files and the user's code are those of one process. This package has proxies of the
collector, the engine and the learner, and the workers that they call.
"""

import contextlib
import copy
import dataclasses

from turnwise.config import ConfigStore
from turnwise.episode import CollectorOptions
from turnwise.errors import ConfigError
from turnwise.learner import LearnerOptions
from turnwise.learner.build import make_policy
from turnwise.reward import batch_type
from turnwise.scale.ray.cluster import Cluster, Failures
from turnwise.scale.ray.episode_pool import EpisodePool, RemoteCollector, RemoteEngine
from turnwise.scale.ray.episode_worker import EpisodeSpec
from turnwise.scale.ray.learner import LearnerGroup, RemoteLearner
from turnwise.scale.ray.transfer import ModelSource
from turnwise.trainer.assembly import begins_with_other_weights, make_collector, samples_exactly
from turnwise.trainer.checks import check_run
from turnwise.trainer.components import UserComponents
from turnwise.trainer.learning import Advantages, RunComponents
from turnwise.user_code import require_use


def assemble(
    config: ConfigStore, user: UserComponents, total_steps: int | None = None
) -> RunComponents:
    """Start the workers, and build their proxies in this process."""
    check_run(config, user)
    if config.ray.address is not None:
        require_use(f"the Ray cluster {config.ray.address}")
    algorithm = user.algorithm(config)
    options = user.episode_options(config)
    kinds = user.mix_kinds(options)
    ray, gpus, num_split = config.ray, config.ray.gpus_per_worker, config.model.tensor_parallel_size
    if ray.num_learners % ray.context_parallel_size:
        raise ConfigError(
            f"ray.context_parallel_size got {ray.context_parallel_size}, expected a divisor of "
            f"ray.num_learners, which is {ray.num_learners}"
        )
    if (ray.min_actors or 0) > ray.num_actors:
        raise ConfigError(
            f"ray.min_actors got {ray.min_actors}, expected at most ray.num_actors, which is "
            f"{ray.num_actors}"
        )
    if num_split > max(1, gpus):
        raise ConfigError(
            f"model.tensor_parallel_size got {num_split}, and each worker has {gpus:g} GPUs. Its "
            f"engine needs them all: ray.gpus_per_worker={num_split}"
        )
    # The workers load the weights. This process needs none, where the model's files allow it.
    model, tokenizer = user.model_and_tokenizer(_placed(config, "cpu"), has_weights=False)
    users_model = None
    if user.model is not None:
        users_model = model if model.device.type == "cpu" else copy.deepcopy(model).cpu()
    source = ModelSource(_placed(config, "cuda" if gpus else "cpu"), users_model)
    num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    with contextlib.ExitStack() as closing:
        origin = user.episode_source(config, closing)
        cluster = Cluster(config.ray, num_bytes)
        closing.callback(cluster.close)
        failures = Failures(config.ray.max_failures)
        worker_options = _without_batch_reward(options)
        worker_kinds = {
            name: dataclasses.replace(kind, options=_without_batch_reward(kind.options))
            for name, kind in kinds.items()
        }
        spec = EpisodeSpec(source, tokenizer, origin, worker_options, worker_kinds)
        pool = EpisodePool(cluster, config.ray.num_actors, spec, failures)
        group = LearnerGroup(cluster, config, source, algorithm, failures)
        learner_options = dataclasses.replace(
            LearnerOptions.from_config(config, total_steps, algorithm.policy_loss),
            horizon=user.horizon(config),
        )
        learner = RemoteLearner(make_policy(config, model, algorithm), learner_options, group=group)
        must_send = begins_with_other_weights(config, user, model)
        first = learner.policy_objects() if must_send else ()
        engine = RemoteEngine(pool, tokenizer, learner.policy_objects, first)
        closing.callback(pool.close)
        closing.callback(group.close)
        collector = make_collector(RemoteCollector, engine, origin, options, kinds)
        is_exact = samples_exactly(config, learner)
        estimator = algorithm.estimator
        advantages = Advantages(config.training, learner, estimator, sampler_is_exact=is_exact)
        return RunComponents(
            tokenizer, learner, engine, advantages, collector=collector, closing=closing.pop_all()
        )


def _without_batch_reward(options: CollectorOptions) -> CollectorOptions:
    """Drop a reward function of batches: the driver calls it, with the episodes of all workers."""
    if batch_type(options.reward_fn) is None:
        return options
    return dataclasses.replace(options, reward_fn=None)


def _placed(config: ConfigStore, device: str) -> ConfigStore:
    """Return settings with the model on `device`, in the precision of the workers."""
    model = dataclasses.replace(config.model, device=device)
    if model.dtype == "auto":
        model.dtype = "bfloat16" if config.ray.gpus_per_worker else "float32"
    return dataclasses.replace(config, model=model)
