"""Chat templates of thinking models: what each family does with thoughts, in our own words.

The tokenizers are those of the zoo; the templates are as small as they can be, with the variables,
the message fields and the rules about earlier thoughts of the templates that the models ship with.
"""

from dataclasses import dataclass
from functools import cache

from chat.zoo import zoo_tokenizer
from turnwise.chat import ChatFormat

_LAST_USER = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
_SPLIT = (
    "{%- set content, thought = m.content, m.reasoning_content or '' -%}"
    "{%- if '</think>' in content -%}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
)
# Thoughts after the last message of the user stay: those between tool results.
QWEN_3 = (
    _LAST_USER
    + "{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    + _SPLIT
    + "{{ '<|im_start|>assistant\\n' }}"
    "{%- if loop.index0 > ns.last and thought -%}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif -%}"
    "{{ content.lstrip('\\n') + '<|im_end|>\\n' }}"
    "{%- elif m.role == 'tool' -%}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}"
    "{%- else -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}{%- endif -%}"
)
# The variable has another name, and the prompt opens or closes the thought.
DEEPSEEK_V31 = (
    "{{- bos_token -}}{%- for m in messages -%}"
    "{%- if m.role == 'system' -%}{{ m.content }}"
    "{%- elif m.role == 'user' -%}{{ '<｜User｜>' + m.content }}"
    "{%- elif m.role == 'assistant' -%}"
    "{{ '<｜Assistant｜></think>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{%- else -%}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}"
    "{{ '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{%- endif -%}"
)
# Turned off by a word in the message of the user; a dropped thought leaves empty tags.
GLM_45 = (
    _LAST_USER
    + "{{- '[gMASK]<sop>' -}}{%- for m in messages -%}{%- if m.role == 'assistant' -%}"
    + _SPLIT
    + "{{ '<|assistant|>\\n<think>' + (thought.strip() if loop.index0 > ns.last else '') + "
    "'</think>\\n' + content.strip() }}"
    "{%- elif m.role == 'tool' -%}"
    "{{ '<|observation|>\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- else -%}{{ '<|' + m.role + '|>\\n' + m.content }}"
    "{{- '/nothink' if m.role == 'user' and enable_thinking is defined and not enable_thinking }}"
    "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>' }}"
    "{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking }}"
    "{%- endif -%}"
)
# Thoughts stay until a message without tool calls has been answered.
KIMI_THINKING = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}"
    "{%- if m.role == 'assistant' and not m.tool_calls -%}{%- set ns.last = loop.index0 -%}"
    "{%- endif -%}{%- endfor -%}{%- for m in messages -%}"
    "{%- set head = {'user': '<|im_user|>', 'assistant': '<|im_assistant|>'} -%}"
    "{{ head.get(m.role, '<|im_system|>') + m.role + '<|im_middle|>' }}"
    "{%- if m.role == 'assistant' -%}"
    "{{ '<think>' + ((m.reasoning_content or '') if loop.index0 > ns.last else '') + '</think>' }}"
    "{%- endif -%}{{ m.content }}{%- for call in m.tool_calls or [] -%}"
    "{{ '<|tool_calls_section_begin|>' + call.function.name }}{%- endfor -%}{{ '<|im_end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_assistant|>assistant<|im_middle|>' }}{%- endif -%}"
)


@dataclass(frozen=True)
class Thinker:
    """A family of thinking models."""

    tokenizer: str
    """In the zoo."""
    template: str | None
    """None: that of the zoo."""
    has_switch: bool
    """Whether the template knows `enable_thinking`, by this or another name."""
    opens: bool = False
    """Whether the prompt opens the thought."""


THINKERS = {
    "qwen3": Thinker("qwen3", QWEN_3, has_switch=True),
    "deepseek-r1": Thinker("deepseek-r1", None, has_switch=False, opens=True),
    "deepseek-v3.1": Thinker("deepseek-r1", DEEPSEEK_V31, has_switch=True),
    "glm-4.5": Thinker("glm-4", GLM_45, has_switch=True),
    "kimi-k2-thinking": Thinker("kimi-k2", KIMI_THINKING, has_switch=False),
    "gpt-oss": Thinker("harmony", None, has_switch=False),
}


@cache
def thinking_format(name: str, enable_thinking: bool | None = None) -> ChatFormat:
    thinker = THINKERS[name]
    tokenizer = zoo_tokenizer(thinker.tokenizer)
    return ChatFormat(tokenizer, thinker.template, enable_thinking=enable_thinking)
