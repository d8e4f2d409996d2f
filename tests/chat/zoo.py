"""Chat layouts of well-known model families, as small as they can be and laid out as shipped.

The templates are equivalents in our own words: the same control tokens in the same order, the same
white space, the same place for tools. The tokenizers are small, but have what makes a difference:
which tokens are marked special and which are only added, which of them are named, the end tokens of
generation_config.json, the prefix space of SentencePiece, byte-level BPE, normalisers.
"""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from chat.families import CORPUS, GLM, LLAMA_31
from turnwise.chat import ChatFormat


def chatml(opening="", separator="\\n", after="\\n"):
    """ChatML with what families add: a default system text, tools, results as the user's."""
    return (
        "{%- set ns = namespace(last=-1) -%}"
        "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}"
        "{%- endif -%}{%- endfor -%}" + opening + "{%- for m in messages -%}"
        "{%- if m.role == 'tool' -%}"
        "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}"
        "{{ '<|im_start|>user' }}{%- endif -%}"
        "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}"
        "{{ '<|im_end|>" + after + "' }}{%- endif -%}"
        "{%- elif not (tools and loop.first and m.role == 'system') -%}"
        "{%- set content = m.content -%}"
        "{%- if strips and m.role == 'assistant' and '</think>' in content"
        " and loop.index0 < ns.last -%}"
        "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- endif -%}"
        "{{ '<|im_start|>' + m.role + '" + separator + "' + content + '<|im_end|>" + after + "' }}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}"
        "{{ '<|im_start|>assistant" + separator + "' }}{%- endif -%}"
    )


TOOLS_IN_SYSTEM = (
    "{%- if tools -%}{{ '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' -%}{{ messages[0].content + '\\n\\n' }}{%- endif -%}"
    "{{ '# Tools\\n<tools>' }}{%- for tool in tools -%}{{ '\\n' + tool | tojson }}{%- endfor -%}"
    "{{ '\\n</tools>\\nAnswer with <tool_call>{...}</tool_call>.<|im_end|>\\n' }}{%- endif -%}"
)
DEFAULT_SYSTEM = (
    "{%- if not tools and messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif -%}"
)
QWEN_25 = chatml(DEFAULT_SYSTEM + TOOLS_IN_SYSTEM)
QWEN_3 = "{%- set strips = true -%}" + chatml(TOOLS_IN_SYSTEM)
# Definitions as XML, with the keys of a schema as tags.
QWEN_CODER = chatml(
    "{%- if tools -%}{{ '<|im_start|>system\\n<tools>' }}{%- for tool in tools -%}"
    "{%- set f = tool.function -%}{{ '\\n<function>\\n<name>' ~ f.name ~ '</name>' }}"
    "{{ '\\n<description>' ~ f.description | trim ~ '</description>' }}"
    "{%- for key, spec in f.parameters.properties | items -%}"
    "{{ '\\n<parameter>\\n<name>' ~ key ~ '</name>' }}"
    "{%- for extra in spec -%}"
    "{{ '\\n<' ~ extra ~ '>' ~ spec[extra] | string ~ '</' ~ extra ~ '>' }}"
    "{%- endfor -%}{{ '\\n</parameter>' }}{%- endfor -%}{{ '\\n</function>' }}{%- endfor -%}"
    "{{ '\\n</tools><|im_end|>\\n' }}{%- endif -%}"
)
LLAMA_2 = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- for m in messages if m.role != 'system' -%}
{%- if m.role == 'user' -%}
{{ bos_token + '[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system
   else '') + m.content.strip() + ' [/INST]' }}
{%- elif m.role == 'assistant' -%}{{ ' ' + m.content.strip() + ' ' + eos_token }}
{%- else -%}{{ raise_exception('only user and assistant') }}
{%- endif -%}
{%- endfor -%}"""
MISTRAL_01 = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('roles must alternate user/assistant') }}
{%- endif -%}
{{ ' [INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content + eos_token }}
{%- endfor -%}"""
MISTRAL_03 = """\
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{%- set ns = namespace(n=0) -%}
{%- for m in messages if m.role in ('user', 'assistant') and not m.tool_calls -%}
{%- if (m.role == 'user') != (ns.n % 2 == 0) -%}{{ raise_exception('roles') }}{%- endif -%}
{%- set ns.n = ns.n + 1 -%}
{%- endfor -%}
{{- bos_token -}}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and m == users[-1] -%}
{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{%- set first = messages[0].content + '\\n\\n' if m == users[-1] and messages[0].role == 'system'
   else '' -%}
{{ '[INST] ' + first + m.content + '[/INST]' }}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 -%}
{{ raise_exception('ids of calls have nine letters or digits') }}
{%- endif -%}
{{ '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id
   + '"}[/TOOL_RESULTS]' }}
{%- elif m.tool_calls -%}
{%- set call = m.tool_calls[0] -%}
{{ '[TOOL_CALLS] [' + call.function | tojson + ']' + eos_token }}
{%- elif m.role == 'assistant' -%}{{ ' ' + m.content | trim + eos_token }}
{%- endif -%}
{%- endfor -%}"""
ZEPHYR = """\
{%- for m in messages -%}
{{ '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""
PHI_35 = """\
{%- for m in messages -%}
{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}
{%- endfor -%}
{{ '<|assistant|>\\n' if add_generation_prompt else eos_token }}"""
PHI_4_MINI = """\
{%- for m in messages -%}
{%- if m.role == 'system' and tools -%}
{{ '<|system|>' + m.content + '<|tool|>' + tools | tojson + '<|/tool|><|end|>' }}
{%- else -%}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{{ '<|assistant|>' if add_generation_prompt else eos_token }}"""
PHI_4 = chatml(separator="<|im_sep|>", after="")
GEMMA = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{%- if no_system -%}{{ raise_exception('no system role') }}{%- endif -%}
{%- set first = messages[0].content + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles') }}{%- endif -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') + m.content | trim
   + '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""
DEEPSEEK = """\
{{- bos_token -}}
{%- for m in messages if m.role == 'system' -%}{{ m.content }}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<｜User｜>' + m.content }}
{%- elif m.role == 'assistant' -%}
{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
{%- elif m.role == 'tool' -%}
{{ '<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + m.content
   + '<｜tool▁output▁end｜><｜tool▁outputs▁end｜>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' + (opening or '') }}{%- endif -%}"""
DEEPSEEK_R1 = "{%- set opening = '<think>\\n' -%}" + DEEPSEEK
KIMI_K2 = """\
{%- if tools -%}{{ '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' }}
{%- endif -%}
{%- for m in messages -%}
{%- set name = m.name or m.role -%}
{%- if m.role == 'user' -%}{{ '<|im_user|>' + name + '<|im_middle|>' + m.content }}
{%- elif m.role == 'assistant' -%}{{ '<|im_assistant|>' + name + '<|im_middle|>' + m.content }}
{%- elif m.role == 'tool' -%}
{{ '<|im_system|>' + name + '<|im_middle|>## Return of ' + m.tool_call_id + '\\n' + m.content }}
{%- else -%}{{ '<|im_system|>' + name + '<|im_middle|>' + m.content }}
{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_assistant|>assistant<|im_middle|>' }}{%- endif -%}"""
HARMONY = """\
{%- set ns = namespace(called='') -%}
{{- '<|start|>system<|message|>You are a model.<|end|>' -}}
{%- if tools or messages[0].role == 'system' -%}
{{ '<|start|>developer<|message|>' }}
{%- if messages[0].role == 'system' -%}{{ '# Instructions\\n\\n' + messages[0].content }}
{%- endif -%}
{%- if tools -%}{{ '\\n\\n# Tools\\n\\nnamespace functions {' }}
{%- for tool in tools -%}
{{ '\\n// ' + tool.function.description + '\\ntype ' + tool.function.name + ' = (_: {' }}
{%- for key, spec in tool.function.parameters.properties.items() -%}
{{ '\\n// ' + (spec.description or '') + '\\n' + key + ': ' + spec.type + ',' }}
{%- endfor -%}{{ '\\n}) => any;' }}
{%- endfor -%}{{ '\\n}' }}
{%- endif -%}
{{ '<|end|>' }}
{%- endif -%}
{%- for m in messages if m.role != 'system' -%}
{%- if m.role == 'assistant' -%}
{%- if m.tool_calls -%}
{%- set ns.called = m.tool_calls[0].function.name -%}
{{ '<|start|>assistant to=functions.' + ns.called + '<|channel|>commentary json<|message|>'
   + m.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- continue -%}
{%- endif -%}
{%- if '<|channel|>' in m.content -%}{{ raise_exception('no channels in texts') }}{%- endif -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif m.role == 'tool' -%}
{%- if not ns.called -%}{{ raise_exception('no call before a result') }}{%- endif -%}
{{ '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>'
   + m.content | tojson + '<|end|>' }}
{%- else -%}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}"""
GRANITE = """\
{%- if tools -%}
{{ '<|start_of_role|>tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\\n' }}
{%- endif -%}
{%- for m in messages -%}
{%- set role = 'tool_response' if m.role == 'tool' else m.role -%}
{{ '<|start_of_role|>' + role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif -%}"""
COMMAND_R = """\
{{- bos_token -}}
{%- for m in messages -%}
{%- set role = {'user': 'USER', 'assistant': 'CHATBOT'}.get(m.role, 'SYSTEM') -%}
{{ '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + m.content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif -%}"""
FALCON = """\
{%- for m in messages -%}
{{ ('\\n\\n' if not loop.first else '') + m.role | capitalize + ': '
   + m.content.replace('\\r\\n', '\\n').replace('\\n\\n', '\\n') }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '\\n\\nAssistant:' }}{%- endif -%}"""
IM = ("<|im_start|>", "<|im_end|>")
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
QWEN_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
THINK = ("<think>", "</think>")
GLM_ROLES = ("<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
PHI_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>")
MISTRAL_MARKS = (
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
DEEPSEEK_MARKS = (
    *("<｜User｜>", "<｜Assistant｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", *THINK),
)
HARMONY_MARKS = (
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>"),
    *("<|return|>", "<|call|>"),
)


@dataclass(frozen=True)
class Layout:
    """A template, and a tokenizer as its makers ship it."""

    template: str
    eos: str
    bos: str | None = None
    special: tuple[str, ...] = ()
    """Marked special in tokenizer.json, without a name in the tokenizer's configuration."""
    added: tuple[str, ...] = ()
    """Tokens that are only added."""
    text: tuple[str, ...] = ()
    """Added tokens for ordinary text."""
    ends: tuple[str, ...] = ()
    """The list in generation_config.json."""
    kind: str = "bytes"
    flags: tuple[str, ...] = ()
    """Of the special tokens."""
    stops: tuple[str, ...] = ()
    """The tokens that must end a turn."""
    stop_strings: tuple[str, ...] = ()
    spoken: str = ""
    """What the agent says before its answer."""
    drifts: str = ""
    """What a template that changes earlier messages takes away or moves."""
    results_rerender: bool = True
    """Whether it renders a whole conversation with tool results after plain answers."""


ZOO = {
    "qwen2.5": Layout(
        QWEN_25, "<|im_end|>", None, ("<|endoftext|>", IM[0]), (*QWEN_TAGS, "<|fim_prefix|>"),
        ends=("<|im_end|>", "<|endoftext|>"), stops=("<|im_end|>", "<|endoftext|>"),
    ),
    "qwen3": Layout(
        QWEN_3, "<|im_end|>", None, ("<|endoftext|>", IM[0]), (*QWEN_TAGS, *THINK),
        ends=("<|im_end|>", "<|endoftext|>"), stops=("<|im_end|>", "<|endoftext|>"),
        spoken="<think>\nhello\n</think>\n\n", drifts="</think>",
    ),
    "qwen3-coder": Layout(
        QWEN_CODER, "<|im_end|>", None, ("<|endoftext|>", IM[0]), (*QWEN_TAGS, *THINK),
        stops=("<|im_end|>",),
    ),
    "smollm2": Layout(
        chatml(DEFAULT_SYSTEM), "<|im_end|>", "<|im_start|>",
        ("<|endoftext|>", "<repo_name>", "<filename>"), stops=("<|im_end|>",),
    ),
    "chatml-added-only": Layout(chatml(), "<|endoftext|>", None, (), IM, stops=("<|im_end|>",)),
    "chatml-nfkc-lower": Layout(
        chatml(), "<|endoftext|>", None, IM, kind="lower", flags=("normalized",),
        stops=("<|im_end|>",),
    ),
    "hermes": Layout(
        chatml(TOOLS_IN_SYSTEM), "<|im_end|>", "<s>", (IM[0],), QWEN_TAGS[:2], kind="legacy",
        stops=("<|im_end|>",),
    ),
    "llama-2": Layout(LLAMA_2, "</s>", "<s>", kind="legacy", stops=("</s>",)),
    "llama-3.1": Layout(
        LLAMA_31, "<|eot_id|>", "<|begin_of_text|>", ("<|end_of_text|>", *HEADERS),
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ),
    "mistral-0.1": Layout(MISTRAL_01, "</s>", "<s>", kind="legacy", stops=("</s>",)),
    "mistral-0.3": Layout(  # the system's text stands in the last message of the user
        MISTRAL_03, "</s>", "<s>", MISTRAL_MARKS, kind="sentencepiece", stops=("</s>",),
        drifts="You are",
        results_rerender=False,
    ),
    "zephyr": Layout(ZEPHYR, "</s>", "<s>", kind="legacy", stops=("</s>",)),
    "zephyr-metaspace": Layout(ZEPHYR, "</s>", "<s>", kind="sentencepiece", stops=("</s>",)),
    "phi-3.5": Layout(
        PHI_35, "<|endoftext|>", "<s>", PHI_ROLES[:4], kind="sentencepiece", flags=("rstrip",),
        ends=("<|end|>", "<|assistant|>", "<|endoftext|>"), stops=("<|end|>", "<|endoftext|>"),
    ),
    "phi-4-mini": Layout(
        PHI_4_MINI, "<|endoftext|>", None, PHI_ROLES, ends=("<|end|>", "<|endoftext|>"),
        stops=("<|end|>", "<|endoftext|>"),
    ),
    "phi-4": Layout(
        PHI_4, "<|im_end|>", "<|endoftext|>", (IM[0], "<|im_sep|>"), stops=("<|im_end|>",)
    ),
    "gemma-2": Layout(
        "{%- set no_system = true -%}" + GEMMA, "<eos>", "<bos>",
        ("<start_of_turn>", "<end_of_turn>"), kind="gemma", ends=("<eos>", "<end_of_turn>"),
        text=("\n\n", "▁▁", "<table>", "<b>"), stops=("<eos>", "<end_of_turn>"),
    ),
    "gemma-3": Layout(
        GEMMA, "<eos>", "<bos>", ("<start_of_turn>", "<end_of_turn>"), ("<|unused0|>",),
        kind="gemma", text=("\n\n", "▁▁", "<table>", "<b>"), ends=("<eos>", "<end_of_turn>"),
        stops=("<eos>", "<end_of_turn>"),
    ),
    "deepseek-v3": Layout(
        DEEPSEEK, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", (), DEEPSEEK_MARKS,
        stops=("<｜end▁of▁sentence｜>",),
    ),
    "deepseek-r1": Layout(
        DEEPSEEK_R1, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", (), DEEPSEEK_MARKS,
        stops=("<｜end▁of▁sentence｜>",), spoken="hello\n</think>\n\n", drifts="</think>",
    ),
    "glm-4": Layout(
        GLM, "<|endoftext|>", None, ("[gMASK]", *GLM_ROLES),
        ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),
    "kimi-k2": Layout(
        KIMI_K2, "[EOS]", "[BOS]",
        ("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
        ("<|tool_calls_section_begin|>",), ends=("<|im_end|>",), stops=("<|im_end|>", "[EOS]"),
    ),
    "harmony": Layout(
        HARMONY, "<|return|>", "<|startoftext|>", ("<|endoftext|>", *HARMONY_MARKS),
        ends=("<|return|>", "<|endoftext|>", "<|call|>"), stops=("<|return|>", "<|call|>"),
        spoken="<|channel|>final<|message|>", results_rerender=False,
    ),
    "granite": Layout(
        GRANITE, "<|end_of_text|>", "<|end_of_text|>",
        ("<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>", "<fim_prefix>"),
        stops=("<|end_of_text|>",),
    ),
    "command-r": Layout(
        COMMAND_R, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>",
        ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
        stops=("<|END_OF_TURN_TOKEN|>",),
    ),
    "falcon": Layout(FALCON, "<|endoftext|>", None, (">>TITLE<<", ">>ANSWER<<"), spoken=" "),
}  # fmt: skip


def _sentencepiece_vocabulary():
    """A few merges over the letters of the corpus, and a token for each byte."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁")
    core.train_from_iterator(
        CORPUS, BpeTrainer(vocab_size=220, special_tokens=["<unk>"], show_progress=False)
    )
    model = json.loads(core.to_str())["model"]
    vocabulary = dict(model["vocab"])
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), "▁"]:
        vocabulary.setdefault(token, len(vocabulary))
    return vocabulary, [tuple(merge) for merge in model["merges"]]


@cache
def _core(kind: str) -> str:
    """A tokenizer of this kind without added tokens, as JSON."""
    if kind in ("bytes", "lower"):
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        if kind == "lower":
            core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            CORPUS, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        )
        return core.to_str()
    vocabulary, merges = _sentencepiece_vocabulary()
    core = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    space = normalizers.Replace(" ", "▁")
    readers = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "legacy":  # a space before each piece of text between special tokens
        core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
        readers.append(decoders.Strip(" ", 1, 0))
    elif kind == "sentencepiece":  # a space before the first
        core.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
        readers.append(decoders.Strip(" ", 1, 0))
    else:
        core.normalizer = space
    core.decoder = decoders.Sequence(readers)
    return core.to_str()


_FOLDERS = tempfile.TemporaryDirectory(prefix="turnwise-zoo-")


@cache
def zoo_tokenizer(name: str):
    layout = ZOO[name]
    core = Tokenizer.from_str(_core(layout.kind))
    flags = dict.fromkeys(layout.flags, True)
    named = [token for token in (layout.bos, layout.eos) if token]
    core.add_special_tokens(
        [
            AddedToken(token, special=True, **{"normalized": False, **flags})
            for token in dict.fromkeys([*named, *layout.special])
        ]
    )
    core.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token in (*layout.added, *layout.text)
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=layout.bos,
        eos_token=layout.eos,
        chat_template=layout.template,
        clean_up_tokenization_spaces=False,
    )
    if layout.ends:
        folder = Path(_FOLDERS.name) / name
        folder.mkdir()
        ends = tokenizer.convert_tokens_to_ids(list(layout.ends))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        tokenizer.name_or_path = str(folder)
    return tokenizer


@cache
def zoo_format(name: str) -> ChatFormat:
    return ChatFormat(zoo_tokenizer(name))
