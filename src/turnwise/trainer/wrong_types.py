"""Checks of the types of the trainer's arguments, with errors that say how to write them."""

from __future__ import annotations

from typing import Any

import torch

from turnwise.errors import ConfigError
from turnwise.runs.run_folder import Resume
from turnwise.trainer.curriculum import Curriculum


def check_curriculum(curriculum: Any, *, is_mix: bool = False) -> None:
    """Raise unless this is a curriculum or None; for a mix, unless it is None."""
    if curriculum is not None and is_mix:
        raise ConfigError(
            "curriculum= and a mix are both given. A curriculum chooses the tasks of one "
            "environment: environments=[{'environment': ..., 'curriculum': ...}]"
        )
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
    """Raise unless this is a parser, a name or None; names are looked up elsewhere."""
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
    """Raise unless this is a string or None."""
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError(
            f"system_prompt got {_described(prompt)}, expected a string, which is put "
            "before the environment's own system prompt."
        )


def check_model_and_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raise unless these are a model and a tokenizer, or None."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model got {_described(model)}, expected a loaded Hugging Face model, together with "
            "its tokenizer. To name a model, use the setting model.model_name, or model.local_path "
            "for a folder."
        )
    is_one = callable(getattr(tokenizer, "encode", None)) or isinstance(tokenizer, str)
    if tokenizer is not None and (not is_one or isinstance(tokenizer, type)):
        raise ConfigError(
            f"tokenizer got {_described(tokenizer)}, expected a Hugging Face tokenizer, or the "
            "name or folder of one. Load it with AutoTokenizer.from_pretrained(...)."
        )


def resume_mode(resume: Resume | bool) -> Resume:
    """Return the mode for the argument `resume`, which may be a bool; raise for other values."""
    if isinstance(resume, bool):
        return "always" if resume else "never"
    if resume not in ("auto", "always", "never"):
        raise ConfigError(
            f"resume got {resume!r}, expected True to continue a run, False for a new one, or "
            "'auto': a run with the same settings that did not end is continued."
        )
    return resume


_CURRICULUM = ("choose", "observe", "state_dict", "load_state_dict")


def _described(value: Any) -> str:
    """Return a value by its type, strings and numbers as they are."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str | int | float):
        return f"{value!r:.80}"
    return f"an object of type {type(value).__name__}"
