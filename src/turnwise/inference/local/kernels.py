"""CUDA kernels of the local engine, in Triton: attention over the KV cache, and sampling.

Imported on a GPU only. The arithmetic of a program depends on its own row alone. Triton interprets
annotations, so the kernels' arguments have none.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    query, keys, values, output, starts, counts, regions, pasts,
    q_row, q_head, kv_row, out_row, scale,
    group: tl.constexpr, width: tl.constexpr, num_tokens: tl.constexpr, num_rows: tl.constexpr,
    group_pad: tl.constexpr, width_pad: tl.constexpr, size: tl.constexpr, window: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Attends from a few tokens of one segment, for all heads of one group, to its region."""
    segment, head = tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + segment)
    num_new = tl.load(counts + segment)
    first = tl.program_id(0) * num_tokens
    if first >= num_new:
        return
    region = tl.load(regions + segment).to(tl.int64)
    past = tl.load(pasts + segment)
    rows = tl.arange(0, num_rows)
    token, member = first + rows // group_pad, rows % group_pad
    lanes = tl.arange(0, width_pad)
    is_row = (token < num_new) & (member < group) & (rows < num_tokens * group_pad)
    is_cell = is_row[:, None] & (lanes < width)[None, :]
    at = (start + token)[:, None] * q_row + (head * group + member)[:, None] * q_head
    q = tl.load(query + at + lanes[None, :], mask=is_cell, other=0.0)
    largest = tl.full([num_rows], -float("inf"), tl.float32)
    total = tl.zeros([num_rows], tl.float32)
    mixed = tl.zeros([num_rows, width_pad], tl.float32)
    end = past + tl.minimum(first + num_tokens, num_new)
    begin = 0
    if window > 0:
        begin = tl.maximum(past + first - window + 1, 0) // size * size
    for block in range(begin, end, size):
        other = block + tl.arange(0, size)
        cells = (region + other)[:, None] * kv_row + head * width + lanes[None, :]
        is_key = (other < end)[:, None] & (lanes < width)[None, :]
        k = tl.load(keys + cells, mask=is_key, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
        seen = other[None, :] <= (past + token)[:, None]
        if window > 0:
            seen = seen & (other[None, :] > (past + token)[:, None] - window)
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # A row that attends to nothing so far keeps -inf; it must not become NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(largest - base)
        v = tl.load(values + cells, mask=is_key, other=0.0)
        mixed = mixed * fade[:, None]
        mixed = tl.dot(weights.to(v.dtype), v, mixed, input_precision=precision)
        total = total * fade + tl.sum(weights, 1)
        largest = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    to = (start + token)[:, None] * out_row + (head * group + member)[:, None] * width
    tl.store(output + to + lanes[None, :], mixed.to(output.dtype.element_ty), mask=is_cell)


def attend_segments(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    longest: int,
    scale: float,
    window: int | None,
    output: torch.Tensor,
) -> None:
    """Attend from segments to their regions: query [N, H, D] into output [N, H, D].

    `table` [4, S]: the first row of each segment, its number of rows, its region, its past.
    """
    _, num_heads, width = query.shape
    group = num_heads // keys.shape[1]
    group_pad = triton.next_power_of_2(group)
    tokens = 1 if longest == 1 else max(64 // group_pad, 1)
    rows = max(tokens * group_pad, 16)
    grid = (triton.cdiv(longest, tokens), table.shape[1], keys.shape[1])
    _attend_kernel[grid](
        query, keys, values, output, *table,
        query.stride(0), query.stride(1), keys.stride(0), output.stride(0), scale,
        group, width, tokens, rows, group_pad, max(triton.next_power_of_2(width), 16),
        64, window or 0, "ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _sample_kernel(  # type: ignore[no-untyped-def]
    logits, temperatures, seeds, counts, tokens_out, log_probs_out,
    step, ids, positions, slots, pasts, num_on,
    batch, logits_row, vocab_size,
    size: tl.constexpr, feedback: tl.constexpr,
):  # fmt: skip
    """Draw one row's next token by inverting its cumulative distribution."""
    row = tl.program_id(0)
    cell = row
    if feedback:
        if row >= tl.load(num_on):
            return
        cell = tl.load(step).to(tl.int32) * batch + row
    temperatures = tl.load(temperatures + row)
    is_greedy = temperatures == 0.0
    temperatures = tl.where(is_greedy, 1.0, temperatures)
    lanes = tl.arange(0, size)
    source = logits + row.to(tl.int64) * logits_row
    largest = -float("inf")
    total = 0.0
    best = 0
    for block in range(0, vocab_size, size):
        at = block + lanes
        x = tl.load(source + at, mask=at < vocab_size, other=-float("inf")).to(tl.float32)
        # IEEE rounding: the default division depends on the surrounding code, which differs
        # between the kernel of a graph and that of a single step.
        x = tl.div_rn(x, temperatures)
        top, where = tl.max(x, 0, return_indices=True)
        best = tl.where(top > largest, block + where, best)
        higher = tl.maximum(largest, top)
        # While all tokens so far are filtered out, the largest is -inf; it must not become NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base), 0)
        largest = higher
    token = best
    if not is_greedy:
        # Depends on the request's seed and the token's index alone, not on the batch.
        point = tl.rand(tl.load(seeds + row), tl.load(counts + row))
        target = point * total
        before = 0.0
        is_found = 0
        for block in range(0, vocab_size, size):
            at = block + lanes
            x = tl.load(source + at, mask=at < vocab_size, other=-float("inf")).to(tl.float32)
            x = tl.div_rn(x, temperatures)
            mass = tl.exp(x - largest)
            here = tl.sum(mass, 0)
            if (is_found == 0) & (before + here > target):
                reached = before + tl.cumsum(mass, 0)
                # The first token whose cumulated mass exceeds the target.
                found = tl.min(tl.where((reached > target) & (mass > 0.0), at, vocab_size), 0)
                if found < vocab_size:
                    token = found
                    is_found = 1
            before += here
    chosen = tl.div_rn(tl.load(source + token).to(tl.float32), temperatures)
    tl.store(tokens_out + cell, token)
    tl.store(log_probs_out + cell, chosen - largest - tl.log(total))
    if feedback:  # the sampled token is the next step's input
        tl.store(counts + row, tl.load(counts + row) + 1)
        tl.store(ids + row, token)
        tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(slots + row, tl.load(slots + row) + 1)
        tl.store(pasts + row, tl.load(pasts + row) + 1)


def sample_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token for each row of logits [B, V]: (ids, log-probs). Temperature 0 is greedy.

    `seeds` select the rows' random streams, `counts` the position in them.
    """
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    log_probs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    none = tokens  # for unused arguments
    _sample_kernel[(num_rows,)](
        logits, temperatures, seeds, counts, tokens, log_probs, none, none, none, none, none, none,
        num_rows, logits.stride(0), vocab_size, 4096, False, num_warps=8,
    )  # fmt: skip
    return tokens, log_probs


def sample_and_advance(logits: torch.Tensor, state: Any) -> None:
    """Sample each row's next token and make it the next step's input, all on the device."""
    num_rows, vocab_size = logits.shape
    _sample_kernel[(num_rows,)](
        logits, state.temperatures, state.seeds, state.counts, state.tokens, state.log_probs,
        state.step, state.ids, state.positions, state.slots, state.pasts, state.num_on,
        num_rows, logits.stride(0), vocab_size, 4096, True, num_warps=8,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _add_and_norm_kernel(  # type: ignore[no-untyped-def]
    stream, change, weight, output, stream_row, change_row, width, epsilon,
    size: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, size)
    inside = at < width
    x = tl.load(stream + row * stream_row + at, mask=inside, other=0.0)
    if adds:
        # The sum is rounded to the stream's precision, as in the model.
        x = (x + tl.load(change + row * change_row + at, mask=inside, other=0.0)).to(x.dtype)
        tl.store(stream + row * stream_row + at, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    normed = (wide * scale).to(x.dtype) * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(output + row * width + at, normed.to(x.dtype), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_store_kernel(  # type: ignore[no-untyped-def]
    heads, cos, sin, keys, values, slots, heads_row, cache_row,
    num_heads, num_kv_heads, half: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Rotates one head of one token: queries in place, keys and values into the cache."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, size)
    inside = at < half
    source = heads + row * heads_row + head * 2 * half
    low = tl.load(source + at, mask=inside, other=0.0)
    high = tl.load(source + half + at, mask=inside, other=0.0)
    slot = tl.load(slots + row) * cache_row
    if head < num_heads + num_kv_heads:
        c = tl.load(cos + row * 2 * half + at, mask=inside, other=0.0)
        s = tl.load(sin + row * 2 * half + at, mask=inside, other=0.0)
        target = source
        if head >= num_heads:
            target = keys + slot + (head - num_heads) * 2 * half
        tl.store(target + at, (low * c - high * s).to(low.dtype), mask=inside)
        tl.store(target + half + at, (high * c + low * s).to(low.dtype), mask=inside)
    else:
        target = values + slot + (head - num_heads - num_kv_heads) * 2 * half
        tl.store(target + at, low, mask=inside)
        tl.store(target + half + at, high, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gate_kernel(both, output, width, size: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * size + tl.arange(0, size)
    inside = at < width
    x = tl.load(both + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0)
    opened = (x * tl.sigmoid(x)).to(y.dtype)
    tl.store(output + row * width + at, opened * y, mask=inside)


class KernelOps:
    """The operations of `FusedForward`, each as one kernel."""

    @staticmethod
    def add_and_norm(
        stream: torch.Tensor, change: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        width = stream.shape[-1]
        rows = stream.view(-1, width)
        output = torch.empty_like(rows)
        added = rows if change is None else change
        _add_and_norm_kernel[(len(rows),)](
            rows, added, weight, output, rows.stride(0), added.stride(0), width,
            epsilon, triton.next_power_of_2(width), change is not None,
            num_warps=4 if width > 256 else 1,
        )  # fmt: skip
        return output.view(stream.shape)

    @staticmethod
    def gate(gate_and_up: torch.Tensor) -> torch.Tensor:
        num_rows, width = len(gate_and_up), gate_and_up.shape[1] // 2
        output = gate_and_up.new_empty(num_rows, width)
        _gate_kernel[(num_rows, triton.cdiv(width, 1024))](gate_and_up, output, width, 1024)
        return output

    @staticmethod
    def rotate_and_store(
        heads: torch.Tensor,
        num_kv: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        packed: Any,
        layer: int,
    ) -> torch.Tensor:
        keys, values = packed.kv_cache.keys[layer], packed.kv_cache.values[layer]
        num_rows, num_all, width = heads.shape
        _rotate_and_store_kernel[(num_rows, num_all)](
            heads, cos, sin, keys, values, packed.slots, heads.stride(0), keys.stride(0),
            num_all - 2 * num_kv, num_kv, width // 2, triton.next_power_of_2(width // 2),
            num_warps=1,
        )  # fmt: skip
        return heads[:, : num_all - 2 * num_kv]
