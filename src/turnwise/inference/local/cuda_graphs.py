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
from turnwise.inference.local.runner import Runner
from turnwise.inference.local.schedule import MAX_GRAPH_STEPS, Session, kernel_seed
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
        self.sizes = sorted(sizes)
        self._captured: dict[int, tuple[Any, _State]] = {}
        self._pool: Any = None
        self._num_moves = runner.kv_cache.num_moves
        self._last: list[tuple[EngineTurn, int, int]] = []
        """Turn, region and length of each row after the last burst."""

    @torch.no_grad()
    def decode(
        self, sessions: Sequence[Session], num_steps: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Run several steps of sessions whose last token is pending.

        Returns tokens and log-probs, [session][step].
        """
        rows = [
            (s.turn, s.region, s.num_cached)
            for s in sessions
            if s.turn is not None and s.region is not None
        ]
        num_rows = len(rows)
        if self._num_moves != self._runner.kv_cache.num_moves:  # graphs read where it was
            self._captured.clear()
            self._pool = None
            self._last = []
            self._num_moves = self._runner.kv_cache.num_moves
        size = next(size for size in self.sizes if size >= num_rows)
        graph, state = self._captured.get(size) or self.capture(size)
        if self._last != rows:
            self._load(state, rows, [s.ids[-1] for s in sessions])  # else they are up to date
        state.step.zero_()
        for _ in range(num_steps):
            graph.replay()
        self._last = [(turn, region, past + num_steps) for turn, region, past in rows]
        tokens: list[list[int]] = state.tokens[:num_steps, :num_rows].T.tolist()
        log_probs: list[list[float]] = state.log_probs[:num_steps, :num_rows].T.tolist()
        return tokens, log_probs

    def _load(
        self, state: _State, rows: Sequence[tuple[EngineTurn, int, int]], tokens: Sequence[int]
    ) -> None:
        spare = self._runner.kv_cache.scratch
        fill = len(state.temperatures) - len(rows)
        regions = [region for _, region, _ in rows] + [spare] * fill
        pasts = [past for _, _, past in rows] + [0] * fill
        slots = [region + past for region, past in zip(regions, pasts, strict=True)]
        longs = torch.tensor([[*tokens, *[0] * fill], pasts, slots])
        state.longs.copy_(longs, non_blocking=True)
        ints = torch.tensor([regions, pasts], dtype=torch.int32)
        state.table[2:].copy_(ints, non_blocking=True)
        state.num_on.fill_(len(rows))
        turns = [turn for turn, _, _ in rows]
        temperatures = torch.tensor([turn.request.sampling.temperature for turn in turns])
        state.temperatures[: len(rows)].copy_(temperatures, non_blocking=True)
        state.seeds[: len(rows)].copy_(torch.tensor([kernel_seed(turn) for turn in turns]))
        state.counts[: len(rows)].copy_(torch.tensor([len(turn.ids) for turn in turns]))

    @torch.no_grad()
    def capture(self, size: int, *, is_first: bool = False) -> tuple[Any, _State]:
        """Capture the step of so many rows. The first raises RuntimeError if it is impossible.

        For instance, a step of a mixture of experts may synchronize to count tokens per expert.
        """
        from turnwise.inference.local.kernels import sample_and_advance

        runner = self._runner
        state = _State(size, runner.device)
        self._load(state, [], [])
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
