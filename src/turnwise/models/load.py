"""Loads a model and its tokenizer by name."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from turnwise import __version__
from turnwise.errors import ConfigError, did_you_mean, import_extra
from turnwise.models.rounding import HALF, round_weight, threshold_key
from turnwise.models.smollm2 import convert_smollm2
from turnwise.models.tiny import RECIPE, make_tiny, make_tiny_tokenizer
from turnwise.models.weight_files import NotLoadableInParts, WeightFiles, read_wide
from turnwise.whole_files import write_folder

_LOG = logging.getLogger("turnwise")


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model of transformers, ready to sample, and its tokenizer."""

    model: Any
    tokenizer: Any


def cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of that name, filled by `fill` if it does not exist.

    Of several processes at once, the first to finish wins, and all use its folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "turnwise" / "models" / name
    if folder.is_dir():
        return folder

    def check() -> None:
        if folder.is_dir():
            raise FileExistsError(folder)

    try:
        write_folder(folder, fill, check)
    except OSError as error:
        if not folder.is_dir():
            raise ConfigError(
                f"cannot make the folder {folder}: {error}. "
                "Set XDG_CACHE_HOME to another folder for caches."
            ) from error
    return folder


def _save_tiny(folder: Path) -> None:
    for part in make_tiny():
        part.save_pretrained(folder)


# Each built-in name, and a function that returns its folder.
BUILT_IN: dict[str, Callable[[], Path]] = {
    "tiny": partial(cached_folder, f"tiny-{__version__}-{RECIPE}", _save_tiny),
    "smollm2-135m": partial(cached_folder, "SmolLM2-135M-Instruct-Q4_1", convert_smollm2),
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    trust_remote_code: bool = False,
    load_in_4bit: bool = False,
) -> LoadedModel:
    """Load a built-in model (`tiny`, `smollm2-135m`), a folder, or a Hugging Face id.

    `auto` chooses a GPU and bfloat16 if there is one, otherwise the CPU and float32. With
    `load_in_4bit` linear layers have 4-bit weights and compute in that precision (QLoRA).
    """
    target = resolve_device(device)
    kind = resolve_dtype(dtype, target)
    if name_or_path == "tiny" and not load_in_4bit:
        made, tokenizer = make_tiny()
        return LoadedModel(made.to(target, kind), tokenizer)
    from transformers import AutoModelForCausalLM

    source = model_folder(name_or_path)
    options: dict[str, Any] = {}
    if load_in_4bit:  # QLoRA: NF4 weights with quantised scales
        for package in ("bitsandbytes", "accelerate"):
            import_extra(package, "qlora")
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=kind,
        )
        options = {"quantization_config": quantization, "device_map": {"": target}}
    with readable_errors(name_or_path):
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=kind, trust_remote_code=trust_remote_code, **options
        )
    if not load_in_4bit:
        _round_from_files(model.to(target), source)
    tokenizer = load_tokenizer(name_or_path, trust_remote_code=trust_remote_code)
    return LoadedModel(model.eval(), tokenizer)


@torch.no_grad()
def _round_from_files(model: Any, source: str) -> None:
    """Give half-precision weights the values that a run trains on from, where files have more
    precision, and remember the files: the learner's masters begin with their values."""
    if model.dtype not in HALF:
        return
    with suppress(NotLoadableInParts):
        model.weight_files = WeightFiles.find(source)
    parameters = dict(model.named_parameters())
    for name, read in read_wide(model).items():
        weight = parameters[name]
        values = read(0, len(weight))
        weight.copy_(round_weight(values, weight.dtype, threshold_key(name), device=weight.device))


def load_tokenizer(name_or_path: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer alone; one without a padding token pads with its end token."""
    if name_or_path == "tiny":
        return make_tiny_tokenizer()
    from transformers import AutoTokenizer

    source = model_folder(name_or_path)
    with readable_errors(name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    check_tokenizer(tokenizer)
    return tokenizer


def check_tokenizer(tokenizer: Any) -> None:
    """Raise for a tokenizer that encodes ordinary text to no tokens, or to unknown ones alone.

    A tokenizer with incomplete files does so, although it loads without an error.
    """
    text = "Hello, what is 3 + 4?"
    unknown = getattr(tokenizer, "unk_token_id", None)
    if set(tokenizer.encode(text, add_special_tokens=False)) <= {unknown}:
        raise ConfigError(
            f"the tokenizer {getattr(tokenizer, 'name_or_path', '')} encodes {text!r} to unknown "
            "tokens or to none. Is its vocabulary there (tokenizer.json, vocab.json, "
            "tokenizer.model)? tokenizer=... gives another one."
        )


def model_folder(name_or_path: str | os.PathLike[str]) -> str:
    """Return the folder of a built-in name or path, or the hub id, for other programs."""
    name = os.fspath(name_or_path)
    if name in BUILT_IN:
        with without_progress_bars():
            return str(BUILT_IN[name]())
    path = Path(name).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path} is no folder with a model in it: it has no config.json")
        return str(path)
    # `runs/last` could be a hub id, but not if there is a folder `runs`.
    if not _HUB_ID.fullmatch(name) or ("/" in name and path.parent.is_dir()):
        raise ConfigError(
            f"there is no folder {name}. {did_you_mean(name, BUILT_IN)} A model is a built-in "
            "name, a folder, or a Hugging Face id such as Qwen/Qwen3-0.6B."
        )
    if "/" not in name and (near := did_you_mean(name, BUILT_IN)).startswith("Did"):
        _LOG.warning("there is no folder %s: the Hugging Face hub is asked. %s", name, near)
    return name


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of a setting; `auto` is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device got {device!r}, expected auto, cpu, cuda, or cuda:1 and the like"
        ) from error
    num_gpus = torch.cuda.device_count()
    if target.type == "cuda" and (target.index or 0) >= num_gpus:
        raise ConfigError(
            f"device got {str(target)!r}, and torch {torch.__version__} sees {num_gpus} GPUs. "
            "Take device='auto' or 'cpu', or install a torch that was built for this GPU."
        )
    return target


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the precision of a setting; `auto` depends on the device."""
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigError(f"dtype got {name!r}, expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Turn off the progress bars of transformers inside the block."""
    from transformers.utils import logging

    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def readable_errors(name: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any exception of transformers into a `ConfigError`."""
    try:
        with without_progress_bars():
            yield
    except ConfigError:
        raise
    except Exception as error:  # transformers may raise anything
        first_line = str(error).strip().partition("\n")[0]
        reason = f"{first_line} ({type(error).__name__})"
        if "trust_remote_code" in str(error):
            text = (
                f"{name} comes with Python code of its own, which would be run. If you trust it, "
                "pass trust_remote_code=True, or --trust-remote-code to a command."
            )
        elif Path(name).expanduser().is_dir() or name in BUILT_IN:
            text = f"cannot load the model in {name}: {reason}"
        else:
            text = (
                f"there is no folder {name}, and the Hugging Face hub gave no such model: "
                f"{reason}. A gated model needs `hf auth login`; a folder, or a built-in name, "
                f"works offline. {did_you_mean(str(name), BUILT_IN)}"
            )
        raise ConfigError(text) from error
