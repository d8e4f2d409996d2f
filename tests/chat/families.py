"""Small tokenizers of our own in the styles of well-known model families.

Each is a byte-level BPE trained on a few sentences, with the special tokens of its family.
"""

from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnwise.chat import TEMPLATES, ChatFormat

CORPUS = [
    "hello there, the number is higher than 512 and lower than 1023.",
    "You are a helpful assistant. Answer with one move: up, down, left or right.",
    'Tools: {"name": "look_up", "arguments": {"item": "tea"}} price 3, stock 9.',
    "system user assistant tool model think answer observation result hello hello",
] * 20

# A template that is not append-only: it drops the reasoning of earlier answers, and puts
# neighbouring tool results into one user message.
REASONING = """\
{%- if tools -%}
{{ '<|im_start|>system\\nTools:' }}
{%- for tool in tools -%}{{ '\\n' + tool | tojson }}{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- set before = 'none' if loop.first else messages[loop.index0 - 1].role -%}
{%- if before != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
{%- else -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content and not loop.last -%}
{%- set content = content.split('</think>')[-1] -%}
{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


@dataclass(frozen=True)
class Family:
    template: str
    bos: str
    eos: str
    others: tuple[str, ...] = ()
    takes_tools: bool = False
    takes_tool_messages: bool = True


FAMILIES = {
    "chatml": Family(TEMPLATES["chatml"], "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)),
    "llama-2": Family(TEMPLATES["llama-2"], "<s>", "</s>"),
    "llama-3": Family(
        TEMPLATES["llama-3"],
        "<|begin_of_text|>",
        "<|end_of_text|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "mistral": Family(
        TEMPLATES["mistral"],
        "<s>",
        "</s>",
        ("[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "gemma": Family(TEMPLATES["gemma"], "<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>")),
    "zephyr": Family(TEMPLATES["zephyr"], "<s>", "</s>"),
    "plain": Family(TEMPLATES["plain"], "<s>", "</s>"),
    "reasoning": Family(
        REASONING, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",), takes_tools=True
    ),
}


@cache
def make_format(name: str) -> ChatFormat:
    family = FAMILIES[name]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[family.bos, family.eos, *family.others],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=family.bos,
        eos_token=family.eos,
        additional_special_tokens=list(family.others),
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )
    return ChatFormat(tokenizer)
