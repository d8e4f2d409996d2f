"""Chat templates by name, for tokenizers without one.

Each is a Jinja template as Hugging Face tokenizers have them. The markers are plain text, which a
tokenizer encodes as special tokens if it knows them.
"""

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# The system text is not a turn of its own: it precedes the first user message.
_LLAMA_2 = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'assistant' -%}{{ ' ' + message.content | trim + ' ' + eos_token }}
{%- else -%}
{{ bos_token + '[INST] ' }}
{%- if loop.first and system -%}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{%- endif -%}
{{ message.content + ' [/INST]' }}
{%- endif -%}
{%- endfor -%}"""

_LLAMA_3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content }}
{{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif -%}"""

_MISTRAL = """\
{{- bos_token -}}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'assistant' -%}{{ ' ' + message.content | trim + eos_token }}
{%- elif message.role == 'tool' -%}{{ '[TOOL_RESULTS] ' + message.content + '[/TOOL_RESULTS]' }}
{%- else -%}{{ '[INST] ' + (system if loop.first else '') + message.content + '[/INST]' }}
{%- endif -%}
{%- endfor -%}"""

_GEMMA = """\
{{- bos_token -}}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
{{- (system if loop.first else '') + message.content + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

_ZEPHYR = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""

_PLAIN = """\
{%- for message in messages -%}
{{ message.role | capitalize + ': ' + message.content + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"""

TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "llama-2": _LLAMA_2,
    "llama-3": _LLAMA_3,
    "mistral": _MISTRAL,
    "gemma": _GEMMA,
    "zephyr": _ZEPHYR,
    "plain": _PLAIN,
}
