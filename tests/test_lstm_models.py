"""The LSTM ensembles: every forked variant equals the unforked one, in results and in gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tutorial_utils.models import BidirectionalLSTM, ForkedBidirectionalLSTM, ForkedLSTMEnsemble, LSTMEnsemble

SIZES = [(6, 3, 8), (20, 8, 64)]  # T, B, C
VARIANTS = [
    (LSTMEnsemble, ForkedBidirectionalLSTM),
    (ForkedLSTMEnsemble, BidirectionalLSTM),
    (ForkedLSTMEnsemble, ForkedBidirectionalLSTM),
]


def scripted(ensemble: type, model: type, size: int, weights: dict | None = None) -> nn.Module:
    torch.manual_seed(0)
    net = ensemble([model(size) for _ in range(4)])
    if weights is not None:
        net.load_state_dict(weights)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.* is deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.* is deprecated", category=DeprecationWarning)
        return torch.jit.script(net)


def with_library_weights(size: int) -> tuple[BidirectionalLSTM, nn.LSTM]:
    model, library = BidirectionalLSTM(size), nn.LSTM(size, size, bidirectional=True)
    weights = {name: value for name, value in model.forward_lstm.named_parameters()}
    weights |= {f"{name}_reverse": value for name, value in model.backward_lstm.named_parameters()}
    library.load_state_dict(weights)
    return model, library


@pytest.mark.parametrize(("t", "b", "c"), SIZES)
@pytest.mark.parametrize(("ensemble", "model"), VARIANTS)
def test_a_forked_variant_is_bitwise_equal_in_inference(ensemble, model, t, b, c) -> None:
    base = scripted(LSTMEnsemble, BidirectionalLSTM, c)
    forked = scripted(ensemble, model, c, base.state_dict())
    x = torch.randn(t, b, c, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for _ in range(3):  # the first runs are those in which the executor profiles and optimises
            assert torch.equal(forked(x), base(x))


@pytest.mark.parametrize(("t", "b", "c"), SIZES)
@pytest.mark.parametrize(("ensemble", "model"), VARIANTS)
def test_a_forked_variant_has_the_same_gradients(ensemble, model, t, b, c) -> None:
    base = scripted(LSTMEnsemble, BidirectionalLSTM, c)
    forked = scripted(ensemble, model, c, base.state_dict())
    x = torch.randn(t, b, c, generator=torch.Generator().manual_seed(1))
    base(x).square().mean().backward()
    forked(x).square().mean().backward()
    for (name, a), f in zip(base.named_parameters(), forked.parameters(), strict=True):
        torch.testing.assert_close(f.grad, a.grad, rtol=1e-5, atol=1e-7, msg=name)
        assert a.grad.abs().max() > 0


@pytest.mark.parametrize(("t", "b", "c"), SIZES)
def test_a_bidirectional_lstm_is_pytorchs(t, b, c) -> None:
    torch.manual_seed(0)
    model, library = with_library_weights(c)
    x = torch.randn(t, b, c)
    with torch.no_grad():
        assert torch.equal(model(x), library(x)[0])


def test_eager_fork_gives_the_same() -> None:
    base = LSTMEnsemble([BidirectionalLSTM(8) for _ in range(2)])
    forked = ForkedLSTMEnsemble([ForkedBidirectionalLSTM(8) for _ in range(2)])
    forked.load_state_dict(base.state_dict())
    x = torch.randn(5, 2, 8)
    with torch.no_grad():
        assert torch.equal(base(x), forked(x))
