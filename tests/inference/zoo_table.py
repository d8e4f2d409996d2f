"""The table of model families in docs/inference.md, made of the models that test_zoo.py runs.

PYTHONPATH=src:tests python -m inference.zoo_table       rewrites it
"""

from dataclasses import dataclass
from pathlib import Path

from inference.zoo import REFUSED, SUPPORTED

PAGE = Path(__file__).parents[2] / "docs" / "inference.md"
START, END = "<!--models-->\n\n", "\n<!--/models-->\n"


@dataclass(frozen=True)
class Family:
    models: str
    """Names that people know."""
    names: tuple[str, ...]
    """Names in the zoo, all of which run on the local engine or none."""
    features: str
    """What its tests turn on."""


FAMILIES = [
    Family(
        "Llama 1 to 3, SmolLM2, DeepSeek-R1-Distill-Llama",
        ("llama", "llama, linear rope", "llama, yarn", "llama, dynamic rope"),
        "biases, tied head; llama3, linear, YaRN and dynamic rotary scaling",
    ),
    Family(
        "Qwen2, Qwen2.5",
        ("qwen2", "qwen2, upper layers"),
        "sliding window on some layers, on the upper layers",
    ),
    Family("Qwen1.5-MoE, Qwen2-MoE", ("qwen2-moe",), "experts, a shared expert"),
    Family("Qwen3", ("qwen3",), "norms of queries and keys, sliding window on some layers"),
    Family("Qwen3-MoE", ("qwen3-moe",), "experts, norms of queries and keys"),
    Family("Qwen3-Next, Qwen3.5", ("qwen3-next", "qwen3.5"), "linear attention on some layers"),
    Family(
        "Mistral, Ministral",
        ("mistral", "mistral, no window", "ministral"),
        "sliding window on all layers, on some, on none; wide heads",
    ),
    Family("Mixtral", ("mixtral",), "experts, sliding window"),
    Family("Gemma", ("gemma",), "wide heads, scaled embeddings"),
    Family("Gemma 2", ("gemma2",), "soft-capped attention"),
    Family("Gemma 3", ("gemma3",), "sliding window on some layers, soft-capped logits"),
    Family("Phi-1, Phi-2", ("phi",), "partial rotary, norms of queries and keys"),
    Family(
        "Phi-3, Phi-4",
        ("phi3", "phi3, longrope", "phi3, partial rope"),
        "sliding window; longrope; partial rotary with a tied head",
    ),
    Family("GLM-4", ("glm", "glm4"), "partial rotary, biases, norms after the blocks"),
    Family("GLM-4.5", ("glm4-moe",), "experts after a dense layer, norms of queries and keys"),
    Family("OLMo, OLMo-2", ("olmo", "olmo2"), "clipped projections; norms after the blocks"),
    Family("OLMo-3", ("olmo3",), "sliding window on some layers"),
    Family("OLMoE", ("olmoe",), "experts"),
    Family("SmolLM3", ("smollm3",), "layers without rotary, sliding window on some layers"),
    Family("Granite 3", ("granite", "granite-moe"), "multipliers; experts"),
    Family("gpt-oss", ("gpt-oss",), "attention sinks, sliding window, experts"),
    Family(
        "DeepSeek-V2, DeepSeek-V3, Kimi K2",
        ("deepseek-v2", "deepseek-v3"),
        "latent attention, experts in groups",
    ),
    Family("Command R", ("cohere", "cohere2"), "parallel blocks; sliding window on some layers"),
    Family("StarCoder2", ("starcoder2",), "sliding window, biases"),
    Family("GPT-2, OPT", ("gpt2", "opt"), "learned positions, scaled scores, projected embeddings"),
    Family(
        "GPT-NeoX, Pythia",
        ("gpt-neox", "gpt-neox, serial"),
        "partial rotary, parallel and serial blocks",
    ),
    Family("Llama 4", ("llama4",), "attention in chunks"),
    Family(
        "Falcon, BLOOM, MPT, GPT-J, GPT-Neo, StableLM",
        ("falcon", "falcon, alibi", "bloom", "mpt", "gptj", "gpt-neo", "stablelm"),
        "ALiBi, local attention",
    ),
    Family(
        "Mamba, Jamba, Falcon-H1, RecurrentGemma",
        ("mamba", "jamba", "falcon-h1", "recurrent-gemma"),
        "state-space layers, linear recurrences",
    ),
    Family("LFM2, MiniMax", ("lfm2", "minimax"), "convolutions; linear attention"),
]


def table() -> str:
    lines = ["| models | `model_type` | on `local` | tested with |", "|---|---|---|---|"]
    for family in FAMILIES:
        reasons = {REFUSED[name][1] for name in family.names if name in REFUSED}
        assert not reasons or all(name in REFUSED for name in family.names)
        makers = [SUPPORTED.get(name) or REFUSED[name][0] for name in family.names]
        types = dict.fromkeys(f"`{make().model_type}`" for make in makers)
        how = f"`transformers`: {'; '.join(sorted(reasons))}" if reasons else "exact"
        lines.append(f"| {family.models} | {', '.join(types)} | {how} | {family.features} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, rest = PAGE.read_text().split(START)
    PAGE.write_text(before + START + table() + END + rest.split(END)[1])
