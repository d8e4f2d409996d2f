"""Models by name: built in, from a folder, or from the Hugging Face hub."""

from turnwise.models.load import (
    BUILT_IN as BUILT_IN,
    LoadedModel as LoadedModel,
    check_tokenizer as check_tokenizer,
    load_model as load_model,
    load_tokenizer as load_tokenizer,
    model_folder as model_folder,
)
