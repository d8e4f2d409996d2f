"""An engine by the name of its backend."""

import inspect
import logging
import os
import typing
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference.base import BaseInferenceEngine, Overflow, check_options
from turnwise.inference.scripted import Policy, ScriptedEngine
from turnwise.inference.transformers import TransformersEngine
from turnwise.models import load_model, load_tokenizer, model_folder
from turnwise.models.probing import UnsupportedModel
from turnwise.user_code import import_object

_log = logging.getLogger(__name__)

ENGINES = {
    "local": "turnwise.inference.local:LocalEngine",
    "transformers": "turnwise.inference.transformers:TransformersEngine",
    "vllm": "turnwise.inference.vllm:VLLMInferenceEngine",
    "sglang": "turnwise.inference.sglang:SGLangInferenceEngine",
    "scripted": "turnwise.inference.scripted:ScriptedEngine",
}
"""The class of each backend; other packages add theirs as entry points of `turnwise.engines`."""

# Options that every backend accepts, so that one can replace another.
_LOADING = ("dtype", "device", "trust_remote_code")
_COMMON = {*_LOADING, "tensor_parallel_size", "max_model_len", "overflow", "start_timeout"}


def engine_class(backend: str) -> type[BaseInferenceEngine]:
    """Return the class of a backend: a name, or an own one as `module:Class` or `file.py:Class`."""
    if backend in ENGINES:
        kind = import_object(ENGINES[backend], is_built_in=True)
    elif ":" in backend:
        kind = import_object(backend, option="inference.backend")
    else:
        others = {point.name: point for point in entry_points(group="turnwise.engines")}
        if backend not in others:
            hint = did_you_mean(backend, {*ENGINES, *others})
            raise ConfigError(f"there is no backend {backend!r}. {hint}")
        kind = others[backend].load()
    if not (isinstance(kind, type) and issubclass(kind, BaseInferenceEngine)):
        raise ConfigError(f"backend {backend!r} is {kind!r}, expected a BaseInferenceEngine")
    return kind


def create_inference_engine(
    model_path: Any,
    backend: str = "local",
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Any = None,
    policy: Policy | None = None,
) -> BaseInferenceEngine:
    """Make an engine for a model: `local`, `transformers`, `vllm`, `sglang`, `scripted`, or yours.

    `model_path` is a built-in name, a folder or a Hugging Face id; for `local` and `transformers`
    also a model that is loaded already (strings then need `tokenizer`); for `vllm` and `sglang`
    also the URL of a running server. `config` holds the engine's options: `dtype`, `device`,
    `tensor_parallel_size`, `max_model_len`, `trust_remote_code`, `overflow`, and those of its
    own. `policy` is what `scripted` answers with. An engine of yours is named as `module:Class`,
    `file.py:Class` or by an entry point of the group `turnwise.engines`.
    """
    kind: type[Any] = engine_class(backend)
    options = dict(config or {})
    if policy is not None and kind is not ScriptedEngine:
        raise ConfigError(f"policy is for backend='scripted', and the backend is {backend!r}")
    if options.get("overflow", "truncate") not in typing.get_args(Overflow):
        raise ConfigError(f"overflow got {options['overflow']!r}, expected 'truncate' or 'error'")
    is_named = isinstance(model_path, str | os.PathLike)
    is_url = is_named and str(model_path).startswith(("http://", "https://"))
    if is_url:
        if kind.server is None:
            raise ConfigError(
                f"{model_path} is a server, and the {backend} engine runs in this process. "
                "Take vllm or sglang."
            )
        kind = kind.server
    if not kind.shares_model and options.get("device") == "auto":
        del options["device"]
    accepted = options
    known = _keywords(kind)
    if "**" not in known:  # otherwise it passes them on, and checks them itself
        check_options(f"the {backend} engine", options, known | _COMMON)
        accepted = {name: value for name, value in options.items() if name in known}
    if isinstance(tokenizer, str | os.PathLike):
        is_trusted = bool(options.get("trust_remote_code"))
        tokenizer = load_tokenizer(tokenizer, trust_remote_code=is_trusted)
    if kind is ScriptedEngine:
        if tokenizer is None and not is_named:
            raise ConfigError('a script needs a tokenizer. Pass tokenizer=, or the model "tiny".')
        return ScriptedEngine(tokenizer or load_tokenizer(model_path), policy)
    make: Callable[..., BaseInferenceEngine] = kind
    if is_url:
        if decided := [name for name in options if name not in accepted]:
            raise ConfigError(
                f"{' and '.join(decided)} cannot be chosen for {model_path}: that was decided "
                "when the server was started"
            )
        return make(model_path, tokenizer=tokenizer, **accepted)
    if not is_named and not (kind.shares_model and hasattr(model_path, "state_dict")):
        raise ConfigError(
            f"model_path got {type(model_path).__name__}, expected a name, a folder, a Hugging "
            "Face id, for vllm and sglang a server's URL, for others a loaded model"
        )
    if not kind.shares_model:
        return make(model_folder(model_path), tokenizer=tokenizer, **accepted)
    if options.get("tensor_parallel_size", 1) != 1:
        raise ConfigError(
            f"tensor_parallel_size got {options['tensor_parallel_size']!r}, and the {backend} "
            "engine runs on one device. Take vllm or sglang, or 1."
        )
    model = model_path
    if is_named:
        loaded = load_model(model_path, **{k: v for k, v in options.items() if k in _LOADING})
        model = loaded.model
        tokenizer = loaded.tokenizer if tokenizer is None else tokenizer
    elif too_late := [k for k in ("dtype", "device") if options.get(k, "auto") != "auto"]:
        raise ConfigError(
            f"{' and '.join(too_late)} cannot be chosen for a model that is loaded already. "
            "Move it with model.to(...), or give its name."
        )
    try:
        return make(model, tokenizer=tokenizer, **accepted)
    except UnsupportedModel as error:
        _log.warning("%s The transformers engine is used instead, which is slower.", error)
        known = _keywords(TransformersEngine)
        kept = {name: value for name, value in accepted.items() if name in known}
        return TransformersEngine(model, tokenizer, **kept)


def _keywords(kind: type[Any]) -> set[str]:
    """Return the options of an engine; `**` if it takes any."""
    names: set[str] = set()
    _, *parameters = inspect.signature(kind).parameters.values()  # the model or URL comes first
    for parameter in parameters:
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.add(parameter.name)
        elif packed := typing.get_args(parameter.annotation):  # `**options: Unpack[ItsOptions]`
            names |= typing.get_type_hints(packed[0]).keys()
        else:
            names.add("**")
    return names - {"tokenizer", "policy"}
