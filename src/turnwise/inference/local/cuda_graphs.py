"""Decoding on a GPU with CUDA graphs: several steps without Python in between.

A graph holds one decode step for a fixed number of rows: forward, sampling, and the sampled token
as the next input. The host launches a burst of steps, then reads the sampled tokens; rows that end
within a burst are cut there.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from turnwise.inference.local.attention import Packed
from turnwise.inference.local.kernels import sample_and_advance
from turnwise.inference.local.runner import Runner
from turnwise.inference.local.schedule import MAX_GRAPH_STEPS, DecodeRow, kernel_seed
from turnwise.inference.worker import EngineTurn


class _State:
    """The buffers of a burst on the device, at fixed addresses."""

    def __init__(self, size: int, device: torch.device) -> None:
        def table(kind: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        self.longs = table(torch.int64, 3, size)
        self.ids, self.positions, self.slots = self.longs
        self.table = table(torch.int32, 4, size)
        self.table[0] = torch.arange(size)
        self.table[1] = 1
        self.pasts = self.table[3]
        self.num_on = table(torch.int32, 1)
        self.temperatures = table(torch.float32, size)
        self.seeds = table(torch.int64, size)
        self.counts = table(torch.int32, size)
        self.step = table(torch.int64, 1)
        self.tokens = table(torch.int32, MAX_GRAPH_STEPS, size)
        self.log_probs = table(torch.float32, MAX_GRAPH_STEPS, size)


class DecodeGraphs:
    """One captured decode step for each of a few batch sizes, captured at first use."""

    def __init__(self, runner: Runner, sizes: Sequence[int]) -> None:
        self._runner = runner
        self._sizes = sorted(sizes)
        self.most_rows = self._sizes[-1]
        self._captured: dict[int, tuple[Any, _State]] = {}
        self._pool: Any = None
        self._num_moves = runner.kv_cache.num_moves
        self._last: list[tuple[EngineTurn, int, int]] = []
        """Turn, region and length of each row after the last burst."""

    @torch.no_grad()
    def decode(
        self, rows: Sequence[DecodeRow], num_steps: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Run several steps; return tokens and log-probs, [row][step]."""
        num_rows = len(rows)
        if self._num_moves != self._runner.kv_cache.num_moves:  # graphs read where it was
            self._captured.clear()
            self._pool, self._last = None, []
            self._num_moves = self._runner.kv_cache.num_moves
        size = next(size for size in self._sizes if size >= num_rows)
        graph, state = self._captured.get(size) or self._capture(size)
        if self._last != [(row.turn, row.region, row.past) for row in rows]:
            self._load(state, rows, size)  # otherwise the buffers are up to date
        state.step.zero_()
        for _ in range(num_steps):
            graph.replay()
        self._last = [(row.turn, row.region, row.past + num_steps) for row in rows]
        tokens: list[list[int]] = state.tokens[:num_steps, :num_rows].T.tolist()
        log_probs: list[list[float]] = state.log_probs[:num_steps, :num_rows].T.tolist()
        return tokens, log_probs

    def _load(self, state: _State, rows: Sequence[DecodeRow], size: int) -> None:
        spare = self._runner.kv_cache.scratch
        fill = size - len(rows)
        longs = [
            [row.token for row in rows] + [0] * fill,
            [row.past for row in rows] + [0] * fill,
            [row.region + row.past for row in rows] + [spare] * fill,
        ]
        ints = [
            [row.region for row in rows] + [spare] * fill,
            [row.past for row in rows] + [0] * fill,
        ]
        state.longs.copy_(torch.tensor(longs), non_blocking=True)
        state.table[2:].copy_(torch.tensor(ints, dtype=torch.int32), non_blocking=True)
        state.num_on.fill_(len(rows))
        if rows:
            temperatures = torch.tensor([row.turn.request.sampling.temperature for row in rows])
            state.temperatures[: len(rows)].copy_(temperatures, non_blocking=True)
            state.seeds[: len(rows)].copy_(torch.tensor([kernel_seed(row.turn) for row in rows]))
            state.counts[: len(rows)].copy_(torch.tensor([len(row.turn.ids) for row in rows]))

    @torch.no_grad()
    def try_capture(self) -> None:
        """Capture the smallest size. Raises RuntimeError if the model cannot be captured.

        For instance, a step of a mixture of experts may synchronize to count tokens per expert.
        """
        self._capture(self._sizes[0], is_first=True)

    def _capture(self, size: int, *, is_first: bool = False) -> tuple[Any, _State]:
        runner = self._runner
        state = _State(size, runner.device)
        self._load(state, [], size)
        packed = Packed([], runner.kv_cache, state.slots, [(state.table, 1)])

        def step() -> None:
            logits = runner.forward_packed(state.ids, state.positions, packed)
            sample_and_advance(logits, state)
            state.step.add_(1)

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles and selects kernels before the capture
                step()
            if is_first:
                # Operations that synchronize with the device fail here rather than during the
                # capture. Not later: it concerns all threads, and the learner, which may be
                # computing then, synchronizes.
                before = torch.cuda.get_sync_debug_mode()
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    step()
                finally:
                    torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # What the learner does in its own thread is no part of the capture, and allowed.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._pool = self._pool or graph.pool()
        self._captured[size] = (graph, state)
        return graph, state
