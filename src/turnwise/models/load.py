"""Loads a model and its tokenizer by name."""

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
from turnwise.models.foreign_files import check_model_files
from turnwise.models.rounding import HALF, round_weight, threshold_key
from turnwise.models.smollm2 import convert_smollm2
from turnwise.models.tiny import RECIPE, make_tiny, make_tiny_tokenizer
from turnwise.models.weight_files import NotLoadableInParts, WeightFiles, read_wide
from turnwise.whole_files import write_folder


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
        if not folder.is_dir():  # otherwise another process was first
            raise ConfigError(
                f"cannot make the folder {folder}: {error}. "
                "XDG_CACHE_HOME names another place for caches."
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
_DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
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
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place)
    if name_or_path == "tiny" and not load_in_4bit:
        made, tokenizer = make_tiny()
        return LoadedModel(made.to(place, kind), tokenizer)
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
        options = {"quantization_config": quantization, "device_map": {"": place}}
    with readable_errors(name_or_path):
        check_model_files(source)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=kind, trust_remote_code=trust_remote_code, **options
        )
    if not load_in_4bit:
        _round_from_files(model.to(place), source)
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
        check_model_files(source)
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
    ids = tokenizer.encode(text, add_special_tokens=False)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if any(token != unknown for token in ids):
        return
    got = f"{len(ids)} times the unknown token" if ids else "no tokens"
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    raise ConfigError(
        f"the tokenizer {name} encodes {text!r} to {got}, expected tokens that stand for the text. "
        "Is its vocabulary there (tokenizer.json, vocab.json, tokenizer.model)? Another one is "
        "given with tokenizer=..."
    )


def model_folder(name_or_path: str | os.PathLike[str]) -> str:
    """Return the folder of a built-in name or path, or the hub id, for other programs."""
    name = os.fspath(name_or_path)
    if name in BUILT_IN:
        with without_progress_bars():
            return str(BUILT_IN[name]())
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path)
        inner = sorted(str(config.parent) for config in path.glob("*/config.json"))
        fix = f"Did you mean {inner[0]}?" if inner else "save_pretrained writes one."
        raise ConfigError(f"the folder {path} holds no model: it has no config.json. {fix}")
    if path.exists():
        raise ConfigError(f"{name} is a file, expected a folder with a model in it")
    # `runs/last` could be a hub id, but not if there is a folder `runs`.
    if not _HUB_ID.fullmatch(name) or ("/" in name and path.parent.is_dir()):
        raise ConfigError(
            f"there is no folder {name}. {did_you_mean(name, BUILT_IN)} "
            "A model is a built-in name, a folder, or a Hugging Face id such as "
            "Qwen/Qwen3-0.6B."
        )
    return name


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of a setting; `auto` is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device got {device!r}, expected auto, cpu, cuda, or cuda:1 and the like"
        ) from error
    num_gpus = torch.cuda.device_count()
    if place.type == "cuda" and (place.index or 0) >= num_gpus:
        raise ConfigError(
            f"device got {str(place)!r}, and torch {torch.__version__} sees {num_gpus} GPUs. "
            "Take device='auto' or 'cpu', or install a torch that was built for this GPU."
        )
    return place


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the precision of a setting; `auto` depends on the device."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype got {dtype!r}, expected auto, {', '.join(_DTYPES)}")
    kind: torch.dtype = _DTYPES[dtype]
    return kind


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
        raise ConfigError(_explain(str(name), error)) from error


def _explain(name: str, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return (
            f"{name} comes with Python code of its own, which would be run. "
            "If you trust it, pass trust_remote_code=True, or --trust-remote-code to a command."
        )
    if Path(name).expanduser().is_dir() or name in BUILT_IN:
        return f"cannot load the model in {name}: {_first_line(error)}"
    from huggingface_hub import errors

    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(type(cause))
        cause = cause.__cause__ or cause.__context__
    missing = f"there is no folder {name}, and "
    near = did_you_mean(name, BUILT_IN)
    if errors.GatedRepoError in causes:
        return (
            f"{name} is on the Hugging Face hub for those who were given access. Ask for it on "
            "its page, then log in with `hf auth login`."
        )
    if errors.RepositoryNotFoundError in causes:
        return f"{missing}no such model on the Hugging Face hub. {near}"
    if errors.LocalEntryNotFoundError in causes or errors.OfflineModeIsEnabled in causes:
        return (
            f"{missing}the Hugging Face hub cannot be reached. A folder, or a built-in name, "
            f"works offline. {near}"
        )
    return f"cannot load {name} from the Hugging Face hub: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0]} ({type(error).__name__})" if lines else type(error).__name__
