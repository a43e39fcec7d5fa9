"""Every form of quantisation is one graph, which a new lambda, k or salience does not compile anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from quant_forms import FORMS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import QuantConfig
from trainer.models.subln import SubLN
from trainer.quant.activations import Int8Input
from trainer.quant.saliency import ColumnSaliency, Share, observe
from trainer.quant.ternary import TernaryLinear, as_deployed
from trainer.quant.warmup import Lambda

# What torch's compiler itself does with an autograd.Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("form", "blended"),
    [
        *(pytest.param(form, False, id=name) for name, form in FORMS.items()),
        (next(iter(FORMS.values())), True),
    ],
)
def test_it_is_one_graph_for_all_steps(form: QuantConfig, blended: bool) -> None:
    torch.manual_seed(0)
    lambda_, share = Lambda(0.5), Share(0.25)
    ternary = TernaryLinear(nn.Linear(24, 16), lambda_, form)
    ternary.saliency = ColumnSaliency(ternary.weight, share, ema_decay=0.0)
    norm = SubLN(24, 0.7, ternary.weight, lambda_=lambda_ if blended else None)
    eager = nn.Sequential(norm, ternary)
    graphs = 0

    def count(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return module

    compiled = torch.compile(eager, backend=count, fullgraph=True)
    x = torch.randn(5, 24)
    for value, k in ((0.0, 0.5), (0.3, 0.25), (1.0, 0.0)):
        lambda_.set(value)
        with torch.no_grad():
            ternary.weight.mul_(torch.rand(16, 24) + 0.5)
        observe([ternary.saliency], [ternary.weight])
        share.set(k)
        with torch.no_grad(), as_deployed(eager):  # a measurement between two steps
            eager(x)
        gradients = []
        for model in (eager, compiled):
            eager.zero_grad()
            y = model(x)
            y.square().sum().backward()
            gradients.append([y, *(parameter.grad.clone() for parameter in eager.parameters())])
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert graphs == 1


class Operations(TorchDispatchMode):
    """Keep which operations torch does, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda x: Int8Input(Lambda(1.0).activations)(x), id="activations"),
        pytest.param(lambda x: ternary(x).effective_weight(), id="weights"),
        pytest.param(lambda x: SubLN(24, 0.7, x)(x), id="norm"),
    ],
)
def test_a_compiled_forward_pass_returns_a_copy(
    compute: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it torch 2.11 loses the gradient of all that is before (pytorch#180642)."""
    x = torch.randn(16, 24)
    copies = []
    for is_compiling in (True, False):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda value=is_compiling: value)
        with Operations() as seen:
            compute(x)
        copies.append([name for name in seen.names if name != "aten::detach"][-1] == "aten::clone")
    assert copies == [True, False], "and eager code pays for none"


def ternary(x: Tensor) -> TernaryLinear:
    """Return a layer at lambda 1 with these weights."""
    linear = nn.Linear(24, 16, bias=False)
    linear.weight = nn.Parameter(x)
    return TernaryLinear(linear, Lambda(1.0), next(iter(FORMS.values())))
