"""Decoding on a CPU: several steps of the same rows with one plan."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turnwise.inference.local.attention import Packed
from turnwise.inference.local.fast.cpu_attention import packing_order, padded_kv_len
from turnwise.inference.local.kv_cache import Segment
from turnwise.inference.local.runner import Runner
from turnwise.inference.local.sampling import draw_tokens
from turnwise.inference.local.session import DecodeRow


class CpuDecodeBatch:
    """Decodes the same rows for up to `num_steps` steps, until one needs a longer KV range."""

    def __init__(self, runner: Runner, rows: Sequence[DecodeRow]) -> None:
        self._runner = runner
        segments = [Segment(row.region, row.past, 1) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: packing_order(segments[i]))
        self.rows = [rows[i] for i in order]
        """The rows in the order of the results of `step`."""
        segments = [segments[i] for i in order]
        self.num_steps = min(padded_kv_len(s.past, 1) - s.past for s in segments)
        fill = runner.padded_size(len(rows)) - len(rows)
        segments += [Segment(runner.kv_cache.scratch, 0, 1)] * fill
        table = torch.tensor(
            [
                [row.token for row in self.rows] + [0] * fill,
                [segment.past for segment in segments],
                [segment.region + segment.past for segment in segments],
            ]
        )
        self._table = table
        self._ids, self._positions, self._slots = table
        # Padding rows stay; the others advance by one position at each step.
        self._moves = torch.tensor([1] * len(self.rows) + [0] * fill)
        self._packed = Packed(segments, runner.kv_cache, self._slots)
        self._has_moved = False

    def step(self) -> tuple[list[int], list[float]]:
        """Sample every row's next token: ids and log-probs, in the order of `rows`."""
        num_rows = len(self.rows)
        if self._has_moved:
            self._packed.advance(self._positions)
        logits = self._runner.forward_packed(self._ids, self._positions, self._packed)[:num_rows]
        ids, log_probs = draw_tokens(logits, [row.turn for row in self.rows])
        self._ids[:num_rows] = ids
        self._table[1:] += self._moves
        self._has_moved = True
        return ids.tolist(), log_probs.tolist()
