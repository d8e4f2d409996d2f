"""From logits to tokens: the distribution that is really sampled from, and a draw from it.

A log-prob that is kept for training must be one of this distribution, filters included; so the
filters and the log-probs are made here together, and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from turnwise.errors import ConfigError


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled.

    >>> SamplingParams(temperature=0.7, top_p=0.9).is_greedy
    False
    """

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    top_p: float = 1.0
    """Only the most likely tokens that together have this mass; 1: all."""
    min_p: float = 0.0
    """Only tokens at least this share as likely as the most likely one; 0: all."""

    def __post_init__(self) -> None:
        for name, holds, takes in (
            ("temperature", 0.0 <= self.temperature < float("inf"), "a number from 0 up"),
            ("top_k", self.top_k >= 0, "0 (all) or a count"),
            ("top_p", 0.0 < self.top_p <= 1.0, "a number above 0, up to 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "a number from 0 to 1"),
        ):
            if not holds:
                raise ConfigError(f"{name} got {getattr(self, name)!r}, expected {takes}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether some tokens are never drawn; greedy has no draw."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@torch.no_grad()
def sampling_log_probs(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Log-probs [B, V] of what is sampled from, in float32; −∞ for tokens that are filtered out.

    Temperature comes first, then top-k, top-p and min-p, each on what the ones before it left, as
    in transformers (vLLM has min-p before top-p). A token as likely as the last one let in is let
    in too, so that the set does not depend on the order of equals. A greedy row keeps the model's
    own log-probs at temperature 1: those of a choice without chance would all be 0 and say nothing.
    """
    logits = logits.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        temperatures = torch.tensor([p.temperature or 1.0 for p in params], device=logits.device)
        logits = logits / temperatures[:, None]
    log_probs = torch.log_softmax(logits, -1)
    filtered = [i for i, p in enumerate(params) if p.is_filtered]
    if filtered:
        chosen = [params[i] for i in filtered]
        log_probs[filtered] = _filtered(log_probs[filtered], chosen)
    return log_probs


_FEW = 1024
"""Most likely tokens to look at first: they nearly always hold the mass that top-p asks for."""


def _filtered(log_probs: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """`log_probs` with what the filters leave out at −∞, summing to one again."""
    width = log_probs.shape[1]
    # Sorting a whole vocabulary costs many times what the likely few do; they are enough unless a
    # row asks for more of them, or for more mass than they have.
    most = max(p.top_k for p in params)
    few = log_probs.topk(min(max(_FEW, most), width)).values
    # What all tokens of a row have together is not taken for 1: the fast exp in log_softmax on Arm
    # leaves a mass of up to 1 + 2e-6, which would move the edge of top-p by more than a token of
    # its tail. It is summed in blocks, whose sums round alike however many rows there are.
    mass = torch.nn.functional.pad(log_probs.exp(), (0, -width % _BLOCK))
    sums = mass.view(len(mass), -1, _BLOCK).sum(2, dtype=torch.float64)
    total = sums.cumsum(1)[:, -1:]
    limit, is_found = _limits(few, params, total, width)
    for row in (~is_found).nonzero().flatten().tolist():
        only = slice(row, row + 1)
        ordered = log_probs[only].sort(descending=True).values
        limit[row] = _limits(ordered, params[only], total[only], width)[0]
    return torch.log_softmax(log_probs.masked_fill(log_probs < limit, -torch.inf), -1)


def _limits(
    ordered: torch.Tensor, params: Sequence[SamplingParams], total: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-prob that a token needs to be let in [B, 1], from the likeliest tokens in order.

    And whether so many were enough to know it [B]. `total` [B, 1] is the mass of all tokens,
    `width` their number.
    """
    device, num_seen = ordered.device, ordered.shape[1]
    top_k = torch.tensor([min(p.top_k or width, width) for p in params], device=device)[:, None]
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)[:, None]
    min_p = torch.tensor([p.min_p for p in params], device=device)[:, None]
    # Top-k: as likely as the k-th, or likelier.
    kth = ordered.gather(1, (top_k - 1).clamp(max=num_seen - 1))
    limit = torch.where(top_k < width, kth, -torch.inf)
    # Top-p, on what top-k left: a token is let in while the mass before it is below p.
    mass = ordered.double().exp_().masked_fill_(ordered < limit, 0.0)
    reached = mass.cumsum(1)
    # The last running sum, not a sum: it rounds alike however many tokens the neighbours ask for.
    total = torch.where(top_k < width, reached[:, -1:], total)
    wanted = top_p * total
    num_kept = (reached - mass < wanted).sum(1, keepdim=True)
    nucleus = ordered.gather(1, (num_kept - 1).clamp(min=0, max=num_seen - 1))
    # Where nothing is asked of top-p, rounding must not drop the last tokens.
    limit = torch.where(top_p < 1.0, torch.maximum(limit, nucleus), limit)
    limit = torch.maximum(limit, ordered[:, :1] + min_p.log())
    is_found = (top_p == 1.0) | (reached[:, -1:] >= wanted) | (num_seen == width)
    return limit, is_found.squeeze(1)


@torch.no_grad()
def choose_tokens(
    log_probs: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each row of `sampling_log_probs`: (ids [B], their log-probs [B]).

    `uniforms` are numbers from [0, 1), one a row, each from its request's own random stream: what
    a request draws does not depend on its neighbours. The draw inverts the cumulative
    distribution.
    """
    points = torch.tensor(uniforms, dtype=torch.float64, device=log_probs.device)
    width = log_probs.shape[1]
    if width <= _BLOCK**2:
        ids = _first_beyond(log_probs.exp(), points)
    else:
        ids = _first_beyond_of_many(log_probs, points)
    greedy = [i for i, p in enumerate(params) if p.is_greedy]
    if greedy:
        ids[greedy] = log_probs[greedy].argmax(1)
    return ids, log_probs.gather(1, ids[:, None]).squeeze(1)


_BLOCK = 128
"""Tokens that are added up together where there are very many."""


def _first_beyond(mass: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The first token in each row with whose mass more than that share of the whole is reached.

    mass [B, N], points [B] from [0, 1); a token without mass never is the first [B].
    """
    reached = mass.cumsum(1, dtype=torch.float64)
    wanted = reached[:, -1:] * points[:, None]
    ids = torch.searchsorted(reached, wanted, right=True).squeeze(1)
    return ids.clamp_(max=mass.shape[1] - 1)


def _first_beyond_of_many(log_probs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The same of a whole vocabulary: first the block, then the token in it.

    Adding up every token of it in float64 takes several times as long.
    """
    num_rows, width = log_probs.shape
    num_blocks = -(-width // _BLOCK)
    mass = log_probs.new_zeros(num_rows, num_blocks * _BLOCK)
    torch.exp(log_probs, out=mass[:, :width])
    blocks = mass.view(num_rows, num_blocks, _BLOCK)
    sums = blocks.sum(2)
    reached = sums.cumsum(1, dtype=torch.float64)
    wanted = reached[:, -1:] * points[:, None]
    block = torch.searchsorted(reached, wanted, right=True).clamp_(max=num_blocks - 1)
    in_block = sums.gather(1, block)
    share = (wanted - (reached.gather(1, block) - in_block)) / in_block
    # Rounding must not take it beyond the block's last token.
    share = share.clamp_(min=0.0, max=1.0 - 2.0**-52).squeeze(1)
    rows = torch.arange(num_rows, device=mass.device)
    block = block.squeeze(1)
    return block * _BLOCK + _first_beyond(blocks[rows, block], share)
