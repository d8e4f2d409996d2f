"""Fuzzes and times every parser: a million broken texts, adversarial texts, an ordinary turn.

    python bench/parsers.py [--inputs 1000000] [--only hermes glm]

An exception ends the run and prints the text that caused it. A slow text is timed again and its
best time counts, so that other load on the machine is not blamed on the parser. The bars: no text
takes 10 ms, an ordinary turn takes less than 50 microseconds.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from results import add_record_option, record
from turnwise.tools import PARSERS, ActionParser, ParseOutcome, ToolCall, get_parser

WORST_BAR_MS, TYPICAL_BAR_US = 10.0, 50.0
LONG = 100_000
# A text that takes longer than this is timed again, REPEATS times.
SUSPECT_SECONDS = 0.2e-3
REPEATS = 20

PROSE = (
    "The order asks for two cups of tea. I have looked up the price, and there is enough in stock, "
    "so the next step is to buy it. I should write the item as it stands in the list and give the "
    "quantity as a number. After that the order is closed, and I can tell how it went.\n\n"
)
TYPICAL = ToolCall("buy", {"item": "green tea", "quantity": 2, "note": 'in a "big" cup, please'})
CALLS = [
    TYPICAL,
    ToolCall("stop"),
    ToolCall("write", {"path": "a/b.py", "text": 'def f(x):\n    return {"x": x < 3}\n'}),
    ToolCall("plan", {"steps": [{"tool": "buy", "arguments": {}}, None, True, -1.5e-7], "n": "5"}),
    ToolCall("tell", {"é": "東京 🍵 \u202e \x00 </think> </tool_call> [ARGS] ```json"}),
]
PIECES = [
    '{"', '{"a":', '{"a":[', '{"a', "{", "}", "[", "]", '"', "\\", "\\u", "'", ":", ",", ";", "=",
    "<", ">", "\n", " ", "NaN", "1e999", "-", "0.1,", "1,", "[],", '"",', '{"a":1.5},', "null",
    '{"tool": "a", ', '{"name":"a"}', "{'tool'", "```json\n", "```", "*", "`", "Action: ",
    "Action: a\nAction Input: ", "Observation:\n", "<tool_call>", "</tool_call>", '<tool_call>{"',
    "<function=", "<function=a>", "<parameter=a>", "<parameter=a>1</parameter>", "</parameter>",
    "</function>", "<arg_key>", "<arg_key>a</arg_key><arg_value>1</arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[TOOL_CALLS]a", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "a.call(b=", ")",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "f:0",
    "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>", "to=functions.a", "[THINK]",
    "<think>", "</think>", "[/THINK]", "é", "🍵", "\ud800", "\udc00", "\x00", "\u202e", "\u2028",
]  # fmt: skip


@dataclass
class Report:
    """The outcomes and times of one parser."""

    outcomes: Counter[ParseOutcome] = field(default_factory=Counter)
    fuzz_worst: float = 0.0
    """Seconds."""
    made_worst: float = 0.0
    typical: float = 0.0

    def row(self) -> list[str]:
        total = sum(self.outcomes.values())
        shares = [f"{self.outcomes[outcome] / total:.0%}" for outcome in ParseOutcome]
        worst = max(self.fuzz_worst, self.made_worst)
        met = worst < WORST_BAR_MS / 1e3 and self.typical < TYPICAL_BAR_US / 1e6
        times = [f"{self.fuzz_worst * 1e3:.2f}", f"{self.made_worst * 1e3:.2f}"]
        return [f"{total:,}", *shares, *times, f"{self.typical * 1e6:.1f}", "yes" if met else "NO"]


def fuzz_texts(parser: ActionParser, num_texts: int, seed: str) -> Iterator[str]:
    """Yields rendered calls with pieces removed, doubled and inserted, and pieces alone."""
    rng = random.Random(seed)
    good = [parser.render(call) for call in CALLS]
    for _ in range(num_texts):
        text = rng.choice(good) if rng.random() < 0.8 else ""
        for _ in range(rng.randint(1, 4)):
            start = rng.randint(0, len(text))
            end = rng.choice((start, start, start + 1, start + rng.randint(0, 30), len(text)))
            added = rng.choice((rng.choice(PIECES), text[start:end] * 2, "", rng.choice(good)))
            text = text[:start] + added + text[end:]
        yield text


def slow_texts(parser: ActionParser) -> Iterator[str]:
    """Yields texts of 100 KB in which one piece is repeated, alone or inside a call."""
    example = parser.render(ToolCall("f", {"x": [5]}))
    before, after = example.split("5]")
    wholes = [parser.render(call) for call in CALLS]
    for piece in [*PIECES, *wholes, *(f"{whole}\n" for whole in wholes)]:
        for head, tail in (("", ""), (before, ""), (before, f"5]{after}"), (example[:-3], after)):
            yield head + piece * ((LONG - len(head) - len(tail)) // len(piece)) + tail


def seconds(parser: ActionParser, text: str) -> float:
    start = perf_counter()
    parser.parse(text)
    return perf_counter() - start


def check_again(parser: ActionParser, text: str, took: float) -> float:
    """Returns the best time of a slow text over several runs."""
    if took < SUSPECT_SECONDS:
        return took
    return min(seconds(parser, text) for _ in range(REPEATS))


def fuzz(parser: ActionParser, num_texts: int, seed: str, report: Report) -> None:
    for text in fuzz_texts(parser, num_texts, seed):
        start = perf_counter()
        try:
            result = parser.parse(text)
        except Exception as error:
            raise SystemExit(f"{seed}: {error!r} for {text!r}") from error
        took = perf_counter() - start
        report.outcomes[result.outcome] += 1
        if took > report.fuzz_worst:
            report.fuzz_worst = max(report.fuzz_worst, check_again(parser, text, took))


def measure(name: str, num_texts: int) -> Report:
    report = Report()
    parser = get_parser(name)
    turn = PROSE + parser.render(TYPICAL)
    report.typical = median(seconds(parser, turn) for _ in range(2_000))
    report.made_worst = max(
        check_again(parser, text, seconds(parser, text)) for text in slow_texts(parser)
    )
    fuzz(parser, num_texts, name, report)
    return report


def main() -> None:
    options = argparse.ArgumentParser(description="Time the parsers and try to break them.")
    options.add_argument("--inputs", type=int, default=1_000_000, help="texts for each parser")
    options.add_argument("--only", nargs="+", choices=list(PARSERS), help="only these parsers")
    add_record_option(options)
    args = options.parse_args()
    names = args.only or [name for name in PARSERS if name != "qwen"]  # the same as hermes
    columns = ["parser", "texts", *(outcome.value for outcome in ParseOutcome)]
    columns += ["worst of them, ms", f"worst of {LONG // 1000} KB, ms", "typical, µs", "bars met"]
    print(f"bars: {WORST_BAR_MS:.0f} ms for the worst, {TYPICAL_BAR_US:.0f} µs for a typical turn")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    reports = []
    for name in names:
        reports.append(measure(name, args.inputs))
        print(f"| {' | '.join([name, *reports[-1].row()])} |", flush=True)
    if args.record:
        typical = [report.typical * 1e6 for report in reports]
        record(
            "parsers/all",
            {
                "texts per parser": args.inputs,
                "slowest broken text ms": 1e3 * max(report.fuzz_worst for report in reports),
                "slowest 100 KB text ms": 1e3 * max(report.made_worst for report in reports),
                "ordinary turn µs": [min(typical), max(typical)],
            },
        )


if __name__ == "__main__":
    main()
