"""Log-probs in chunks: the numbers of the plain computation, in a fraction of its memory."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turnwise import ConfigError
from turnwise.learner.log_probs import Head, chosen_log_probs


def inputs(num_tokens=13, width=6, num_words=17, bias=False, dtype=torch.float64):
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(num_words, width, dtype=dtype, requires_grad=True)
    offset = torch.randn(num_words, dtype=dtype, requires_grad=True) if bias else None
    return hidden, weight, offset, torch.randint(0, num_words, (num_tokens,))


def plain(hidden, weight, bias, targets, temperature, scale, softcap):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_probs = (logits * scale / temperature).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), entropy


@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
@pytest.mark.parametrize(
    ("bias", "temperature", "scale", "softcap"),
    [(False, 1.0, 1.0, None), (True, 0.7, 1.0, None), (True, 1.3, 0.5, 2.0)],
)
def test_the_same_values_and_gradients_as_the_plain_computation(
    chunk, bias, temperature, scale, softcap
):
    hidden, weight, offset, targets = inputs(bias=bias)
    head = Head(weight, offset, scale, softcap)
    got = chosen_log_probs(hidden, head, targets, temperature=temperature, chunk_tokens=chunk)
    expected = plain(hidden, weight, offset, targets, temperature, scale, softcap)
    pull = torch.randn(2, len(targets), dtype=torch.float64)
    variables = [x for x in (hidden, weight, offset) if x is not None]
    got_grads = torch.autograd.grad((torch.stack(got) * pull).sum(), variables)
    expected_grads = torch.autograd.grad((torch.stack(expected) * pull).sum(), variables)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(got_grads, expected_grads, rtol=0, atol=1e-10)


def test_a_word_that_cannot_be_said_adds_nothing():
    hidden, weight, _, targets = inputs()
    offset = torch.zeros(17, dtype=torch.float64)
    offset[3] = -torch.inf
    targets[targets == 3] = 4
    log_probs, entropy = chosen_log_probs(hidden, Head(weight, offset), targets)
    (log_probs.sum() + entropy.sum()).backward()
    assert bool(log_probs.isfinite().all() and entropy.isfinite().all())
    assert bool(hidden.grad.isfinite().all() and weight.grad.isfinite().all())


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that was made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype.is_floating_point:
                self.numel = max(self.numel, x.numel())
        return result


def largest_tensor(num_tokens, num_words, chunk_tokens):
    hidden, weight, _, targets = inputs(num_tokens, 4, num_words)
    with Largest() as largest:
        got = chosen_log_probs(hidden, Head(weight), targets, chunk_tokens=chunk_tokens)
        torch.stack(got).sum().backward()
    return largest.numel


def test_the_full_matrix_never_exists():
    assert largest_tensor(50, 200, chunk_tokens=50) >= 50 * 200  # the measure sees it
    for num_tokens in (50, 500):
        assert largest_tensor(num_tokens, 200, chunk_tokens=5) <= max(5 * 200, num_tokens * 4)


def test_a_greedy_policy_is_refused():
    hidden, weight, _, targets = inputs()
    with pytest.raises(ConfigError, match="temperature got 0"):
        chosen_log_probs(hidden, Head(weight), targets, temperature=0.0)
