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

# Tools in the system message between tags, results in a user message: the style of Hermes.
HERMES = """\
{%- set system = messages[0].content if messages[0].role == 'system' else 'You call functions.' -%}
{{ '<|im_start|>system\\n' + system }}
{%- if tools -%}
{{ '\\n<tools>' }}
{%- for tool in tools -%}{{ '\\n' + tool | tojson }}{%- endfor -%}
{{ '\\n</tools>' }}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# Tools in the first user message, results from a role of their own: the style of Llama 3.1.
LLAMA_31 = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- if tools and users and message == users[0] -%}
{{ 'Answer with a JSON call of one of these functions:\\n' }}
{%- for tool in tools -%}{{ tool | tojson(indent=4) + '\\n\\n' }}{%- endfor -%}
{%- endif -%}
{{ message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}"""

# Tools right before the last user message: the style of Mistral. Not append-only with tools.
MISTRAL_TOOLS = """\
{{- bos_token -}}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'user' -%}
{%- if tools and message == users[-1] -%}
{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{{ '[INST]' + (system if loop.first else '') + message.content + '[/INST]' }}
{%- elif message.role == 'tool' -%}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else -%}{{ message.content + eos_token }}
{%- endif -%}
{%- endfor -%}"""

# Roles as single tokens, nothing after an answer but the next role: the style of GLM.
GLM = """\
{{- '[gMASK]<sop>' -}}
{%- if tools -%}
{{ '<|system|>\\n# Tools\\n<tools>\\n' }}
{%- for tool in tools -%}{{ tool | tojson + '\\n' }}{%- endfor -%}{{ '</tools>' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|observation|>\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- else -%}{{ '<|' + message.role + '|>\\n' + message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""


@dataclass(frozen=True)
class Family:
    template: str
    bos: str
    eos: str
    others: tuple[str, ...] = ()
    takes_tools: bool = False


FAMILIES = {
    "chatml": Family(TEMPLATES["chatml"], "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)),
    "plain": Family(TEMPLATES["plain"], "<s>", "</s>"),
    "reasoning": Family(
        REASONING, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",), takes_tools=True
    ),
    "hermes": Family(HERMES, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",), takes_tools=True),
    "llama-3.1": Family(
        LLAMA_31,
        "<|begin_of_text|>",
        "<|end_of_text|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        takes_tools=True,
    ),
    "mistral-tools": Family(
        MISTRAL_TOOLS,
        "<s>",
        "</s>",
        (
            *("[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
            *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]"),
        ),
        takes_tools=True,
    ),
    "glm": Family(
        GLM,
        "[gMASK]",
        "<|endoftext|>",
        ("<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        takes_tools=True,
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


def difference_of(conversation):
    """Where a rendering of the whole conversation would differ; None: nowhere.

    A turn may end with any end-of-turn token; that is no difference.
    """
    chat, stream = conversation.format, conversation.stream
    ids = chat.with_template_ends(stream.ids, stream.turns)
    return chat.difference(conversation.messages, ids, conversation._tools)
