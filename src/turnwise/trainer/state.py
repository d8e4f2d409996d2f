"""Checkpoints: weights, optimiser, every random generator, and the progress of the run.

Weights and the optimiser's tensors are safetensors, the rest is JSON: nothing is unpickled.
"""

import contextlib
import dataclasses
import json
import logging
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from turnwise.config import ConfigStore, PolicyItem
from turnwise.episode.seeds import derive_seed
from turnwise.errors import CheckpointError, ConfigError, EngineStalled, did_you_mean
from turnwise.learner import PolicyValueModel, add_configured_lora, merge_lora
from turnwise.learner.base import BaseLearner, LearnerState, placed_weights, trained_parameters
from turnwise.learner.tensor_file import TensorFile, TensorFileWriter
from turnwise.models import LoadedModel, load_model, load_tokenizer
from turnwise.models.empty import load_empty_model
from turnwise.models.load import BUILT_IN
from turnwise.models.weight_files import NotLoadableInParts
from turnwise.runs.checkpoints import Checkpoint, CheckpointStore, open_checkpoint
from turnwise.runs.places import base_folders, find_models
from turnwise.runs.run_folder import RunFolder, is_run
from turnwise.trainer.schedule import Progress
from turnwise.trainer.stopping import Interrupted
from turnwise.user_code import allows_model_code, require_model_code, settings_from

_LOG = logging.getLogger("turnwise")
_WEIGHTS, _LEARNER = "weights.safetensors", "learner.safetensors"
_STATE, _CONFIG = "state.json", "config.yaml"


def write_state(
    folder: Path,
    learners: Mapping[str, BaseLearner],
    config: ConfigStore,
    progress: Mapping[str, Any],
) -> None:
    """Write the state of a run to a folder; raise if its weights are not finite.

    `learners` are by player; the run's own is ''.
    """
    broken: list[str] = []
    for player, learner in learners.items():
        layout = learner.state_layout()
        with (
            TensorFileWriter(folder / _file(_WEIGHTS, player), layout.weights) as weights,
            TensorFileWriter(folder / _file(_LEARNER, player), layout.rest) as rest,
        ):
            for shard in learner.state_shards():
                for name, tensor in shard.weights.items():
                    weights.append(name, tensor)
                    if not bool(tensor.isfinite().all()):
                        broken.append(name)
                for name, tensor in shard.rest.items():
                    rest.append(name, tensor)
    if broken:
        raise CheckpointError(
            f"the weights are not finite ({broken[0]}): not saved. The previous checkpoint is "
            "intact; resume from it with a lower training.learning_rate."
        )
    state = {"progress": dict(progress), "random": _random_state()}
    (folder / _STATE).write_text(json.dumps(state, allow_nan=False))
    config.save(folder / _CONFIG)


def _file(name: str, player: str) -> str:
    return f"{player}.{name}" if player else name


def read_state(checkpoint: Checkpoint, learners: Mapping[str, BaseLearner]) -> dict[str, Any]:
    """Restore the learners and the random generators from a checkpoint; return its `progress`."""
    state = json.loads(checkpoint.file(_STATE).read_text())
    progress: dict[str, Any] = state.get("progress", {})
    needed = {field.name for field in dataclasses.fields(Progress)}
    needed |= {f"policy/{player}" for player in learners}
    if "torch" not in state.get("random", {}) or not needed <= progress.keys():
        raise ConfigError(
            f"{checkpoint.path} was saved by another version of turnwise, whose checkpoints have "
            "other contents. Resume it with that version, or begin a new run: resume=False."
        )
    for player, learner in learners.items():
        _read_learner(checkpoint, learner, player)
    _set_random_state(state["random"])
    return progress


def _read_learner(checkpoint: Checkpoint, learner: BaseLearner, player: str) -> None:
    weights = TensorFile(checkpoint.file(_file(_WEIGHTS, player)))
    rest = TensorFile(checkpoint.file(_file(_LEARNER, player)))
    _check_belongs(weights.shapes, learner.model, checkpoint)

    def read(rank: int, number: int) -> LearnerState:
        return LearnerState(weights.shard(rank, number), rest.shard(rank, number))

    learner.load_state_shards(read)


def checkpoint_settings(checkpoint: Checkpoint) -> ConfigStore:
    """Return the settings that a run had when it saved this checkpoint."""
    return ConfigStore.load(checkpoint.file(_CONFIG))


def find_checkpoint(path: str | Path, which: Literal["best", "last"] = "last") -> Checkpoint:
    """Return a checkpoint of a run's folder, or the one in this folder."""
    path = Path(path).expanduser()
    if (path / _STATE).is_file():
        return open_checkpoint(path)
    store = CheckpointStore(RunFolder(path).checkpoints)
    if not store.folder.is_dir() and not is_run(path):
        raise CheckpointError(f"{path} is neither a run nor a checkpoint: it has no checkpoints")
    best = store.best if which == "best" else None
    chosen = store.newest() if best is None else open_checkpoint(store.path(best.step))
    if chosen is None:
        raise CheckpointError(
            f"the run in {path} has not saved a checkpoint yet. turnwise train {path} goes on"
        )
    return chosen


def load_trained_model(
    path: str | Path,
    which: Literal["best", "last"] = "last",
    *,
    trust_remote_code: bool = False,
    model: str | None = None,
    policy: str = "",
) -> tuple[LoadedModel, ConfigStore]:
    """Return the model that a run trained, with merged adapters, and the run's settings.

    `model` names the model that the weights belong to, where the settings cannot: a script passed
    an object to the trainer. `policy` is a player of `policies`, whose model is returned.

    Python code that comes with the model is run if `trust_remote_code` is set, or if you have
    trained with the same model and `model.trust_remote_code` yourself. The settings in the folder
    are not enough, since the folder may come from another person.
    """
    checkpoint = find_checkpoint(path, which)
    config = checkpoint_settings(checkpoint)
    find_models(config, base_folders(checkpoint.path))
    if policy and policy not in config.policies:
        raise ConfigError(
            f"the run has no policy {policy!r}. {did_you_mean(policy, config.policies)}"
        )
    item = config.policies[policy] if policy else PolicyItem()
    if model is not None or item.model is not None:
        use_model(config, model or str(item.model))
    with settings_from(checkpoint.path, is_trusted=trust_remote_code):
        if not allows_model_code(config.model.local_path or config.model.model_name):
            config.model.trust_remote_code = False
        config.model.load_in_4bit = False  # adapters are merged into the weights as they were
        loaded = load_configured_model(config)
    if not item.trains:
        return loaded, config
    add_configured_lora(loaded.model, config.training)
    weights = TensorFile(checkpoint.file(_file(_WEIGHTS, policy)))
    shapes = {k: shape for k, shape in weights.shapes.items() if k.startswith("policy.")}
    model_alone = PolicyValueModel(loaded.model, None)
    _check_belongs(shapes, model_alone, checkpoint)
    parameters = trained_parameters(model_alone)
    with torch.no_grad():
        for name in shapes:
            parameters[name].copy_(weights.read(name))
    merge_lora(loaded.model)
    return loaded, config


def load_configured_model(config: ConfigStore) -> LoadedModel:
    """Load the model that the settings name."""
    model = config.model
    return load_model(
        _model_path(config),
        dtype=model.dtype,
        device=model.device,
        trust_remote_code=model.trust_remote_code,
        load_in_4bit=model.load_in_4bit,
    )


def load_configured_model_in_parts(config: ConfigStore, *, is_learner: bool = True) -> Any:
    """Return the model that the settings name without its weights, which learners read in shards.

    If its files do not allow this, the whole model is loaded; a learner logs that.
    """
    path, model = _model_path(config), config.model
    try:
        if model.load_in_4bit:
            raise NotLoadableInParts("its weights are to be quantised")
        return load_empty_model(
            path, dtype=model.dtype, device=model.device, trust_remote_code=model.trust_remote_code
        )
    except NotLoadableInParts as reason:
        if is_learner:
            _LOG.info("each learner loads all weights before it keeps its shard: %s", reason)
        return load_configured_model(config).model


def load_configured_tokenizer(config: ConfigStore) -> Any:
    """Load the tokenizer of that model; its own code is run only if it is trusted."""
    path = _model_path(config, runs_code=False)
    is_trusted = config.model.trust_remote_code and allows_model_code(path)
    return load_tokenizer(path, trust_remote_code=is_trusted)


def check_reference(config: ConfigStore, tokenizer: Any) -> None:
    """Raise if no KL term uses `model.reference`, or it has other tokens than the model."""
    name, training = config.model.reference, config.training
    if name is None:
        return
    if not training.use_kl_in_reward and training.kl_loss_coef == 0:
        raise ConfigError(
            f"model.reference is {name}, and no KL term compares with it. Set "
            "training.kl_loss_coef or training.use_kl_in_reward, or leave it out."
        )
    if (Path(name).expanduser() / "run.json").is_file():
        raise ConfigError(
            f"model.reference is {name}, which is a run and not a model. Set it to the folder that "
            f"turnwise export {name} FOLDER makes."
        )
    is_trusted = config.model.trust_remote_code and allows_model_code(name)
    loaded = load_tokenizer(name, trust_remote_code=is_trusted)
    if loaded.get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"model.reference: {name} has other tokens than the model, so that their log-probs "
            "cannot be compared. Use a model with the same tokenizer."
        )


def use_model(config: ConfigStore, model: str) -> None:
    """Set the model of the settings: an existing folder, a built-in name or a Hugging Face id."""
    folder = Path(model).expanduser()
    config.model.model_name = model
    config.model.local_path = str(folder.absolute()) if folder.is_dir() else None


def _model_path(config: ConfigStore, *, runs_code: bool = True) -> str:
    """Return the name or folder of the model; raise if there is none, or it may not run code."""
    folder = config.model.local_path
    path = folder or config.model.model_name
    if folder is not None and folder not in BUILT_IN and not Path(folder).expanduser().is_dir():
        raise ConfigError(
            f"model.local_path names the folder {folder}, which does not exist. Set it (or --model)"
            " to the model's folder; model.model_name takes names and Hugging Face ids."
        )
    if path.startswith("<object>:"):
        raise ConfigError(
            f"the model was an object of {path.removeprefix('<object>:')} that a script made. Save "
            "it and its tokenizer in a folder with save_pretrained, and give --model or the "
            "setting model.local_path: that folder"
        )
    if runs_code and config.model.trust_remote_code:
        require_model_code(path)
    return path


def has_same_weights(checkpoint: Checkpoint, learner: BaseLearner) -> bool:
    """Return whether all trained parameters are bit for bit those of a checkpoint."""
    saved = TensorFile(checkpoint.file(_WEIGHTS))
    layout = learner.state_layout().weights
    if saved.shapes != {name: tuple(tensor.shape) for name, tensor in layout.items()}:
        return False
    return all(
        torch.equal(tensor.cpu(), saved.read(name, rows.start, rows.stop))
        for name, rows, tensor in placed_weights(learner)
    )


def _check_belongs(
    shapes: Mapping[str, tuple[int, ...]], model: PolicyValueModel, checkpoint: Checkpoint
) -> None:
    expected = {name: tuple(x.shape) for name, x in trained_parameters(model).items()}
    for name in sorted({*expected, *shapes}):
        if shapes.get(name) != expected.get(name):
            raise CheckpointError(
                f"{checkpoint.path} belongs to another model: {name} has shape {shapes.get(name)} "
                f"in it and {expected.get(name)} in the model. Load it with its own config.yaml."
            )


def uses_gpu() -> bool:
    """Whether this process has begun to use a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def seed_generators(seed: int) -> None:
    """Seed the global generators of this process, for environments that use them."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy") % 2**32)
    torch.manual_seed(derive_seed(seed, "torch"))


@contextlib.contextmanager
def restore_generators_if_interrupted() -> Iterator[None]:
    """Restore the global random generators if the block is interrupted, for an exact resume."""
    state = _random_state()
    try:
        yield
    except (Interrupted, EngineStalled):
        _set_random_state(state)
        raise


def _random_state() -> dict[str, Any]:
    numpy: Any = np.random.get_state()
    kind, keys, *rest = numpy
    gpus = torch.cuda.get_rng_state_all() if uses_gpu() else []
    return {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state().tolist(),
        "cuda": [state.tolist() for state in gpus],
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    # The run may be resumed on a machine with fewer GPUs.
    for number, values in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.tensor(values, dtype=torch.uint8), number)
