"""Objects of the wrong type, refused with what was got, what is expected and how to write it."""

from __future__ import annotations

from typing import Any

import torch

from turnwise.errors import ConfigError
from turnwise.trainer.curriculum import Curriculum


def check_curriculum(curriculum: Any) -> None:
    """Refuse what cannot choose the tasks of a step."""
    if curriculum is None or (
        isinstance(curriculum, Curriculum) and not isinstance(curriculum, type)
    ):
        return
    if isinstance(curriculum, type):
        fix = f"Pass an object of it: curriculum={curriculum.__name__}(...)."
    elif isinstance(curriculum, list | tuple):
        fix = "For tasks from easy to hard write curriculum=turnwise.Levels([...])."
    else:
        missing = [name for name in _CURRICULUM if not callable(getattr(curriculum, name, None))]
        fix = f"It has no method {', '.join(missing)}."
    raise ConfigError(
        f"curriculum got {_described(curriculum)}, expected an object with the methods choose, "
        f"observe, state_dict and load_state_dict, such as turnwise.Levels. {fix}"
    )


def check_parser(parser: Any) -> None:
    """Refuse what cannot find calls of tools in a turn; names are looked up elsewhere."""
    is_one = all(callable(getattr(parser, name, None)) for name in ("parse", "render"))
    if parser is None or isinstance(parser, str) or (is_one and not isinstance(parser, type)):
        return
    fix = "Derive its class from turnwise.ActionParser."
    if isinstance(parser, type):
        fix = f"Pass an object of it: parser={parser.__name__}()."
    raise ConfigError(
        f"parser got {_described(parser)}, expected a name such as 'hermes', or an object with the "
        f"methods parse and render. {fix}"
    )


def check_system_prompt(prompt: Any) -> None:
    """Refuse a system prompt that is no text."""
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(
            f"system_prompt got {_described(prompt)}, expected a text, which stands before the "
            "environment's own system prompt."
        )


def check_model_and_tokenizer(model: Any, tokenizer: Any) -> None:
    """Refuse objects that are neither; what is None is loaded by the settings."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model got {_described(model)}, expected a Hugging Face model that is loaded, with "
            "its tokenizer beside it. A model by name is a setting: model.model_name, or "
            "model.local_path for a folder."
        )
    is_one = callable(getattr(tokenizer, "encode", None)) or isinstance(tokenizer, str)
    if tokenizer is not None and (not is_one or isinstance(tokenizer, type)):
        raise ConfigError(
            f"tokenizer got {_described(tokenizer)}, expected a Hugging Face tokenizer, or the "
            "name or folder of one. Load it with AutoTokenizer.from_pretrained(...)."
        )


_CURRICULUM = ("choose", "observe", "state_dict", "load_state_dict")


def _described(value: Any) -> str:
    """A value by its type; a short text or number as it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | int | float):
        return f"{value!r:.80}"
    return f"an object of type {type(value).__name__}"
