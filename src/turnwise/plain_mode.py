"""Plain mode: run the code that reads like the formula, without its faster forms.

Each fast form has a name in `FORMS`, the same signature as its plain form, and the same results up
to rounding. `TURNWISE_PLAIN=1` runs without any of them, `TURNWISE_PLAIN=algo.ppo,chat.encoding`
without these, to find out whether a fast form causes a problem. `bench/plain.py` measures what each
of them gains.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from turnwise.errors import ConfigError, did_you_mean

_VARIABLE = "TURNWISE_PLAIN"
FORMS: dict[str, str] = {
    "algo.masking": "masked sums and whitening in one pass over memory",
    "algo.ppo": "the gradient of the PPO loss written by hand; one kernel on a GPU",
    "algo.recurrence": "discounted sums without a loop over time",
    "algo.tiles": "losses and their gradients a few rows at a time",
    "chat.encoding": "direct calls into the tokenizers library",
    "engine.attention": "sequences of one shape in one batch; a kernel on a GPU",
    "engine.decode": "several decode steps with one plan; captured graphs on a GPU",
    "engine.fused_forward": "a forward of fewer and larger operations",
    "engine.merged_lora": "LoRA adapters merged into a copy of the weights",
    "engine.openmp": "an idle thread releases its OpenMP threads",
    "engine.prompt_cache": "what prompts of several sessions begin with is computed once",
    "engine.sampling": "sampling as one kernel on a GPU",
    "engine.transposed": "matrix products with the tokens as columns on a CPU",
    "learner.adam_kernels": "a step of AdamW as one kernel on a GPU",
    "learner.adapters": "LoRA in fewer passes over memory",
    "learner.gated_kernels": "the inner part of gated MLPs as kernels on a GPU",
    "learner.gated_mlp": "MLPs that keep fewer activations for their gradient",
    "learner.kept_logits": "logits kept for their gradient where a GPU has memory to spare",
    "learner.last_mlp": "the last MLP computed only for tokens whose loss is needed",
    "learner.log_prob_kernels": "log-probs and their gradient as kernels on a GPU",
    "learner.log_probs": "log-probs a chunk of tokens at a time",
    "learner.packing": "episodes packed end to end, without padding",
    "learner.rms_norm": "RMS norms as one kernel on a GPU",
    "learner.rotary": "rotary position embeddings as one kernel on a GPU",
    "learner.shared_prefix": "a prompt of several episodes is computed once",
}
"""The fast forms, and what each of them does."""


def _forms(text: str) -> frozenset[str]:
    """Return the forms that a value of `TURNWISE_PLAIN` names."""
    if text in ("", "0", "1", "true"):
        return frozenset(FORMS if text in ("1", "true") else ())
    names = frozenset(name.strip() for name in text.split(","))
    for name in sorted(names - FORMS.keys()):
        raise ConfigError(
            f"{_VARIABLE} got {name!r}, expected 0, 1, or names of fast forms with commas between "
            f"them. {did_you_mean(name, FORMS)}"
        )
    return names


class _Mode:
    plain_forms = _forms(os.environ.get(_VARIABLE, ""))


def is_plain(form: str) -> bool:
    """Return whether this process runs without this fast form."""
    return form in _Mode.plain_forms


@contextmanager
def plain_mode(forms: bool | Collection[str] = True) -> Iterator[None]:
    """Run the block, and the processes that it starts, without these fast forms or without any.

    Engines, learners and chat formats keep the forms that they were made with.
    """
    before = _Mode.plain_forms, os.environ.get(_VARIABLE)
    text = str(int(forms)) if isinstance(forms, bool) else ",".join(forms)
    _Mode.plain_forms, os.environ[_VARIABLE] = _forms(text), text
    try:
        yield
    finally:
        _Mode.plain_forms, value = before
        if value is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = value
