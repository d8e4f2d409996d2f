"""An engine by the name of its backend."""

from __future__ import annotations

import inspect
import logging
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference.base import BaseInferenceEngine, Overflow
from turnwise.inference.scripted import Policy, ScriptedEngine
from turnwise.inference.transformers import TransformersEngine
from turnwise.models import load_model, load_tokenizer, model_folder
from turnwise.models.dtypes import warn_if_emulated

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Order:
    """What was asked for."""

    model: Any
    """A name, a folder, a URL, or a loaded model."""
    backend: str
    options: Mapping[str, Any]
    tokenizer: Any
    policy: Policy | None

    @property
    def is_named(self) -> bool:
        return isinstance(self.model, str | os.PathLike)

    @property
    def is_url(self) -> bool:
        return isinstance(self.model, str) and self.model.startswith(("http://", "https://"))


def create_inference_engine(
    model_path: Any,
    backend: str = "local",
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Any = None,
    policy: Policy | None = None,
) -> BaseInferenceEngine:
    """Make an engine for a model: `local`, `transformers`, `vllm`, `sglang` or `scripted`.

    `model_path` is a built-in name, a folder or a Hugging Face id; for `local` and `transformers`
    also a model that is loaded already (strings then need `tokenizer`); for `vllm` and `sglang`
    also the URL of a running server. `config` holds the engine's options: `dtype`, `device`,
    `tensor_parallel_size`, `max_model_len`, `trust_remote_code`, `overflow`, and those of its
    own. `policy` is what `scripted` answers with.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}. {did_you_mean(backend, BACKENDS)}")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config got {type(config).__name__}, expected a dict of the engine's options, "
            'for example {"dtype": "float32"}'
        )
    if policy is not None and backend != "scripted":
        raise ConfigError(f"policy is for backend='scripted', and the backend is {backend!r}")
    overflow = (config or {}).get("overflow", "truncate")
    if overflow not in typing.get_args(Overflow):
        raise ConfigError(f"overflow got {overflow!r}, expected 'truncate' or 'error'")
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = load_tokenizer(tokenizer)
    return BACKENDS[backend](_Order(model_path, backend, config or {}, tokenizer, policy))


def _local(order: _Order) -> BaseInferenceEngine:
    from turnwise.inference.local import LocalEngine, UnsupportedModel
    from turnwise.inference.local.runner import HINT

    model, tokenizer, options = _loaded(order, _keywords(LocalEngine))
    try:
        return LocalEngine(model, tokenizer, **options)
    except UnsupportedModel as error:
        reason = str(error).removesuffix(HINT)
        _log.warning("%s The transformers engine is used instead, which is slower.", reason)
    taken = _keywords(TransformersEngine)
    return TransformersEngine(model, tokenizer, **{k: v for k, v in options.items() if k in taken})


def _transformers(order: _Order) -> BaseInferenceEngine:
    model, tokenizer, options = _loaded(order, _keywords(TransformersEngine))
    return TransformersEngine(model, tokenizer, **options)


def _vllm(order: _Order) -> BaseInferenceEngine:
    from turnwise.inference.vllm import VLLMInferenceEngine, VLLMServerEngine

    return _served(order, VLLMInferenceEngine, VLLMServerEngine)


def _sglang(order: _Order) -> BaseInferenceEngine:
    from turnwise.inference.sglang import SGLangInferenceEngine, SGLangServerEngine

    return _served(order, SGLangInferenceEngine, SGLangServerEngine)


def _scripted(order: _Order) -> BaseInferenceEngine:
    _check_options(order, ())
    if order.tokenizer is None and not order.is_named:
        raise ConfigError(
            "a script needs a tokenizer, to say its answers in tokens. Name a model whose "
            'tokenizer it takes, such as "tiny", or pass tokenizer=.'
        )
    tokenizer = load_tokenizer(order.model) if order.tokenizer is None else order.tokenizer
    return ScriptedEngine(tokenizer, order.policy)


BACKENDS: dict[str, Callable[[_Order], BaseInferenceEngine]] = {
    "local": _local,
    "transformers": _transformers,
    "vllm": _vllm,
    "sglang": _sglang,
    "scripted": _scripted,
}
# Options that every backend accepts, so that one can replace another.
_COMMON = (
    "dtype",
    "device",
    "tensor_parallel_size",
    "max_model_len",
    "trust_remote_code",
    "overflow",
)
_LOADING = ("dtype", "device", "trust_remote_code")


def _loaded(order: _Order, keywords: Iterable[str]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model, its tokenizer, and the engine's own options."""
    keywords = set(keywords) - {"tokenizer"}
    _check_options(order, keywords)
    if order.options.get("tensor_parallel_size", 1) != 1:
        raise ConfigError(
            f"tensor_parallel_size got {order.options['tensor_parallel_size']!r}, and the "
            f"{order.backend} engine runs on one device. Take vllm or sglang, or 1."
        )
    own = {k: v for k, v in order.options.items() if k in keywords}
    loading = {k: v for k, v in order.options.items() if k in _LOADING}
    if order.is_url:
        raise ConfigError(
            f"{order.model} is a server, and the {order.backend} engine runs in this process. "
            "Take vllm or sglang."
        )
    if order.is_named:
        loaded = load_model(order.model, **loading)
        own_tokenizer = loaded.tokenizer if order.tokenizer is None else order.tokenizer
        return loaded.model, own_tokenizer, own
    if not hasattr(order.model, "state_dict"):
        raise ConfigError(
            f"model_path got {type(order.model).__name__}, expected a name, a folder, a Hugging "
            "Face id, or a loaded model"
        )
    if too_late := [k for k in ("dtype", "device") if loading.get(k, "auto") != "auto"]:
        raise ConfigError(
            f"{' and '.join(too_late)} cannot be chosen for a model that is loaded already. "
            "Move it with model.to(...), or give its name."
        )
    warn_if_emulated(order.model)
    return order.model, order.tokenizer, own


def _served(
    order: _Order, in_process: Callable[..., Any], behind_url: Callable[..., Any]
) -> BaseInferenceEngine:
    """Make an engine that loads its own model; unknown options are passed on to it."""
    options = {k: v for k, v in order.options.items() if (k, v) != ("device", "auto")}
    if order.tokenizer is not None:
        options["tokenizer"] = order.tokenizer
    if order.is_url:
        _check_options(order, taken := _keywords(behind_url))
        if decided := [name for name in options if name not in taken]:
            raise ConfigError(
                f"{' and '.join(decided)} cannot be chosen for {order.model}: that was decided "
                "when the server was started"
            )
        server: BaseInferenceEngine = behind_url(order.model, **options)
        return server
    if not order.is_named:
        raise ConfigError(
            f"the {order.backend} engine loads its model itself: model_path got "
            f"{type(order.model).__name__}, expected a name, a folder, a Hugging Face id, or "
            "a server's URL. For a loaded model take local."
        )
    engine: BaseInferenceEngine = in_process(model_folder(order.model), **options)
    return engine


def _check_options(order: _Order, keywords: Iterable[str]) -> None:
    known = {*_COMMON, *keywords}
    for name in order.options:
        if name not in known:
            raise ConfigError(
                f"the {order.backend} engine has no option {name!r}. {did_you_mean(name, known)}"
            )


def _keywords(engine: Callable[..., Any]) -> list[str]:
    """Return the options of an engine, without the model or URL, which comes first."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(engine).parameters.values())[1:]
    return [p.name for p in parameters if p.kind in kinds]
