"""Templates that would fill the memory or never end are clear errors, with bounded cost."""

import time

import pytest

from contention import peak_megabytes
from turnwise import ConfigError
from turnwise.chat import ChatFormat
from turnwise.models.tiny import make_tiny_tokenizer

DOUBLE = "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = [] %}{% endfor %}"
ITERATE = "{% for i in range(90000) %}[]{% endfor %}"
LIST = "{% set r = range(90000) | list %}"
BIG = "{% set big = 'x' * 9000000 %}"


def doubled(expression):
    return DOUBLE.replace("[]", expression)


BOMBS = {
    # operators
    "repeat": "{{ 'x' * 10**10 }}",
    "repeat by the number of messages": "{{ 'x' * (messages|length * 99999999) }}",
    "repeat a list": "{{ [0] * 10**8 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set n = namespace(x=9) %}" + ITERATE.replace("[]", "{% set n.x = n.x * n.x %}"),
    "plus": doubled("n.x + n.x") + "{{ n.x }}",
    "tilde": doubled("n.x ~ n.x") + "{{ n.x }}",
    "tilde of lists": doubled("[n.x] ~ [n.x]"),
    "percent": "{{ '%9999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent names": BIG + "{{ ('%(a)s' * 1000) % {'a': big} }}",
    "reversed": BIG + ITERATE.replace("[]", "{% set y = big[::-1] %}"),
    # filters
    "center": "{{ 'x' | center(10**10) }}",
    "center while compiling": "{{ 'x' | center(9999999999) | length }}",
    "indent": "{{ ('x\\n' * 100000) | indent(100000) }}",
    "indent by a text": "{{ ('x\\n' * 100000) | indent('y' * 100000) }}",
    "format": "{{ '%9999999999s' | format('x') }}",
    "format star": "{{ '%*s' | format(9999999999, 'x') }}",
    "replace": BIG + "{{ big | replace('x', big) }}",
    "replace nothing": BIG + "{{ big | replace('', 'y' * 1000) }}",
    "join": BIG + "{{ range(90000) | join(big) }}",
    "join a generator": BIG + "{{ range(90000) | map('string') | join(big) }}",
    "map": BIG + "{{ range(90000) | map('replace', '0', big) | list | length }}",
    "json indentation": "{{ [[1] * 10000] * 10 | tojson(indent=100000) }}",
    "json separators": BIG + "{{ ([1] * 100000) | tojson(separators=(big, ':')) }}",
    "json of shared lists": doubled("[n.x, n.x]") + "{{ n.x | tojson }}",
    "round": "{{ 1.5 | round(10**9) }}",
    "sum of lists": "{{ range(90000) | map('list') | sum(start=[]) }}",
    "batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "wordwrap": BIG + "{{ big | wordwrap(1) | length }}",
    "list of characters": "{{ ('☃' * 9000000) | list | length }}",
    "lipsum": "{{ lipsum(n=10**7) }}",
    # methods
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ ('\\t' * 1000).expandtabs(10**8) }}",
    "replace method": BIG + "{{ big.replace('x', big) }}",
    "join by name": "{{ (['a'] * 300) | join(d='x' * 1000000) }}",
    "join method": BIG + "{{ big.join(['a'] * 100000) }}",
    "format method": "{{ '{:>9999999999}'.format(1) }}",
    "format method, computed": "{{ '{:>{}}'.format(1, 9999999999) }}",
    "format method, repeated": BIG + "{{ ('{0}' * 10000).format(big) }}",
    "format by attribute": BIG + "{{ (('{0}' * 10000) | attr('format'))(big) }}",
    "format_map": BIG + "{{ ('{a}' * 10000).format_map({'a': big}) }}",
    "translate": BIG + "{{ big.translate({120: big}) }}",
    "to_bytes": "{{ (5).to_bytes(10**10, 'big') }}",
    "split": "{% set n = namespace(x=0) %}"
    + ITERATE.replace("[]", "{% set n.x = [n.x, ('☃ ' * 1000000).split()] %}"),
    "strip": "{{ ('a' * 4000000).strip('b' * 4000000 + 'a') }}",
    # structure
    "loop": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": ITERATE.replace("[]", ITERATE.replace("[]", "")),
    "loops whose filter lets nothing pass": ITERATE.replace(
        "[]", "{% for j in range(90000) if j < 0 %}{% endfor %}"
    ),
    "a literal text": ITERATE.replace("[]", "x" * 10_000),
    "a literal list": "{% set n = namespace(x=0) %}"
    + ITERATE.replace("[]", "{% set n.x = [n.x" + ", 1" * 5_000 + "] %}"),
    "many operations": ITERATE.replace(
        "[]", "{% if " + "messages[0].role and " * 2000 + "0 %}{% endif %}"
    ),
    "macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macro twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) + f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "macro that repeats": "{% macro f(x, n) %}{{ f(x ~ x, n - 1) if n else x }}{% endmacro %}"
    "{{ f('x', 60) }}",
    "set block": DOUBLE.replace("n.x = [] %}", "n.x %}{{ n.x }}{{ n.x }}{% endset %}"),
    "recursive loop": "{% for i in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "shared lists": doubled("[n.x, n.x]") + "{{ n.x }}",
    "shared lists by filter": doubled("[none, none] | map('default', n.x, true) | list")
    + "{{ n.x }}",
    "shared namespaces": doubled("namespace(a=n.x, b=n.x)") + "{{ n.x }}",
    "shared tuples as keys": doubled("(n.x, n.x)") + "{{ {n.x: 1} }}",
    "comparison of shared lists": doubled("[n.x, n.x]")
    + doubled("[n.x, n.x]").replace("n.", "m.").replace("set n ", "set m ")
    + "{{ n.x == m.x }}",
    "change of shared lists": doubled("[n.x, n.x]")
    + "{% for i in [1, 2] %}{% for j in [n.x] %}{{ loop.changed(n.x) }}{% endfor %}{% endfor %}",
    "searches": LIST + ITERATE.replace("[]", "{{ -1 in r }}"),
    "searches by test": LIST + ITERATE.replace("[]", "{{ -1 is in r }}"),
    "selections": LIST
    + ITERATE.replace("[]", "{{ r | select('none') | list }}"),
    "a long template": "{{ 'x' }}" * 100_000,
    "deep parentheses": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "deep lists": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
}  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_template_that_computes_too_much_is_a_clear_error(bomb, monkeypatch):
    monkeypatch.setattr("turnwise.chat.sandbox._ALLOWANCE", 3_000_000)  # a part takes less time
    _check_refused(bomb)


@pytest.mark.parametrize("name", ["shared lists", "list of characters", "split"])
def test_the_whole_allowance_takes_seconds_and_megabytes(name):
    _check_refused(BOMBS[name])


def _check_refused(bomb):
    chat = ChatFormat(make_tiny_tokenizer(), bomb + "{{ messages[0].content }}")
    memory, start = peak_megabytes(), time.process_time()
    with pytest.raises(ConfigError, match="the chat template"):
        chat.prompt_ids([{"role": "user", "content": "q"}])
    assert time.process_time() - start < 20
    assert peak_megabytes() - memory < 500


def test_operators_of_ordinary_size_compute_as_ever():
    made = (
        "{{ '-' * 20 + '%02d' % (2**3 * messages|length) ~ '{:>4}'.format(7) }}"
        "{{ [3, 1, 2] | sort | map('string') | join(', ') | center(11) }}"
        "{{ {'a': (1, 2)}['a'] | sum }}"
        "{% for i in range(6) if i is even %}{{ loop.index0 }}{% endfor %}"
        "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}{{ ['a', 'b'] | join(d='-') }}"
        "{{ messages | map(attribute='role') | unique | list }}{{ 'a,b'.split(',')[::-1] }}"
    )
    tokenizer = make_tiny_tokenizer()
    chat = ChatFormat(tokenizer, made + "{{ messages[0].content }}")
    expected = (
        "-" * 20 + "08" + "   7" + "  1, 2, 3  3012{\"a\": 2, \"b\": 1}a-b['user']['b', 'a']q"
    )
    assert tokenizer.decode(chat.prompt_ids([{"role": "user", "content": "q"}])) == expected


def test_long_texts_and_many_messages_are_no_bombs():
    template = (
        "{% for m in messages %}{{ (m.content | trim).split('</think>')[-1] }}"
        "{% for n in messages[loop.index:] %}{{ n.role[:1] }}{% endfor %}{% endfor %}"
    )
    chat = ChatFormat(make_tiny_tokenizer(), template)
    text = "hello " * 200_000
    messages = [{"role": "user", "content": text}] * 5
    expected = "".join(text.strip() + "u" * number for number in (4, 3, 2, 1, 0))
    assert chat.render(messages) == expected
    assert len(chat.render([{"role": "user", "content": ""}] * 1000)) == 499_500
