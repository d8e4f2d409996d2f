"""Models by name: built in, from a folder, or from the Hugging Face hub."""

from turnwise.models.load import (
    BUILT_IN,
    LoadedModel,
    check_tokenizer,
    load_model,
    load_tokenizer,
    model_folder,
)

__all__ = [
    "BUILT_IN",
    "LoadedModel",
    "check_tokenizer",
    "load_model",
    "load_tokenizer",
    "model_folder",
]
