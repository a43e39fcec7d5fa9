"""Rates and initial sizes over widths and depths: factors, updates, and activations after some steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trainer_outcomes import weights_digest

from trainer.api import check
from trainer.config import Config
from trainer.config.model import LadderModelConfig
from trainer.devices.device import open_device
from trainer.errors import ConfigError
from trainer.models.causal_lm import build_tiny, freeze, run
from trainer.models.scale_rule import rate_factors, scale_initial
from trainer.models.subln import make_student
from trainer.optim.build import build_optimizer
from trainer.outcome import Outcome

VOCABULARY, LENGTH = 64, 16
WIDTHS, DEPTHS = (32, 64, 128, 256), (2, 4, 8)
TYPES = ("muon", "muonclip", "adamw", "apollo", "apollo_mini")


def configured(
    width: int, depth: int, rule: str, kind: str = "muon", base: tuple[int, int] = (32, 2)
) -> Config:
    return check(
        [
            *(
                "model=ladder",
                f"model.width={width}",
                f"model.depth={depth}",
                "device=cpu",
                "device.threads=1",
            ),
            *(f"scale_rule={rule}", f"scale_rule.base_width={base[0]}", f"scale_rule.base_depth={base[1]}"),
            *(
                f"stage2.optimizer.type={kind}",
                "stage2.optimizer.lr=0.008",
                "stage2.optimizer.weight_decay=0.1",
            ),
        ]
    )


def fresh(config: Config, seed: int = 0) -> nn.Module:
    assert isinstance(config.model, LadderModelConfig)
    torch.manual_seed(seed)
    model = build_tiny(config.model, vocab_size=VOCABULARY, sequence_length=LENGTH, attention="eager")
    scale_initial(model, config.scale_rule)
    return model


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (16, LENGTH), generator=torch.Generator().manual_seed(seed))


def ternary(model: nn.Module, config: Config) -> nn.Module:
    device = open_device(config.device)
    student, _ = make_student(freeze(model), config.stage1, [tokens()], quant=config.quant, device=device)
    return student


def train(model: nn.Module, config: Config, steps: int) -> None:
    optimizer = build_optimizer(model, config.stage2.optimizer, scale_rule=config.scale_rule)
    ids = tokens()
    for _ in range(steps):
        logits = run(model, ids).logits
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation for it
        optimizer.step()
    optimizer.close()


def rms(tensor: Tensor) -> float:
    return float(tensor.detach().float().square().mean().sqrt())


def changes(config: Config, *, quantised: bool, steps: int = 5) -> tuple[float, float]:
    """Return by how much some steps change the residual stream, before the final norm, and the logits."""
    model = fresh(config)
    model = ternary(model, config) if quantised else model
    with torch.no_grad():
        before = run(model, tokens(), hidden=True)
    train(model, config, steps)
    with torch.no_grad():
        after = run(model, tokens(), hidden=True)
    stream = -2 if len(after.hidden) > 1 else -1
    return rms(after.hidden[stream] - before.hidden[stream]), rms(after.logits - before.logits)


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return the exponent of the power of the size that fits best."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)


@pytest.mark.parametrize(
    ("kind", "quantised"),
    [
        ("muon", True),
        ("adamw", False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("muon", False), ("adamw", True))),
    ],
)
def test_activations_keep_their_size_over_widths(kind: str, quantised: bool) -> None:
    found = {
        rule: [changes(configured(width, 2, rule, kind), quantised=quantised) for width in WIDTHS]
        for rule in ("none", "mup")
    }
    for part, drifts in ((0, 0.25), (1, 0.6)):
        without, with_rule = ([each[part] for each in found[rule]] for rule in ("none", "mup"))
        assert max(with_rule) / min(with_rule) < 1.6
        assert abs(slope(WIDTHS, with_rule)) < 0.25
        assert slope(WIDTHS, without) > drifts


@pytest.mark.parametrize("kind", ["muon", pytest.param("adamw", marks=pytest.mark.slow)])
def test_activations_keep_their_size_over_depths(kind: str) -> None:
    found = {
        rule: [
            changes(configured(64, depth, rule, kind, base=(64, 2)), quantised=True, steps=8)[0]
            for depth in DEPTHS
        ]
        for rule in ("none", "mup")
    }
    assert max(found["mup"]) / min(found["mup"]) < 1.4
    assert slope(DEPTHS, found["none"]) > slope(DEPTHS, found["mup"]) + 0.3


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in ("muon", "adamw") else pytest.mark.slow) for kind in TYPES],
)
def test_update_adds_as_much_to_outputs_at_any_width(kind: str) -> None:
    def gain(width: int, rule: str) -> float:
        """Return the norm of a layer's update that outputs see: RMS to RMS, of its dominant direction."""
        config = configured(width, 2, rule, kind)
        model = fresh(configured(width, 2, "mup", kind))
        weight = model.get_parameter("model.layers.1.mlp.up_proj.weight")
        before = weight.detach().clone()
        train(model, config, 1)
        outputs, inputs = weight.shape
        update = weight.detach() - before
        return float(torch.linalg.matrix_norm(update, 2)) * math.sqrt(inputs / outputs)

    # The updates of AdamW and Apollo are not wholly aligned with the inputs, in models as narrow as these.
    exponent, drift = (0.5, 0.1) if "muon" in kind else (1.0, 0.35)
    with_rule, without = (slope(WIDTHS, [gain(width, rule) for width in WIDTHS]) for rule in ("rms", "none"))
    assert abs(with_rule) < drift
    assert without - with_rule == pytest.approx(exponent, abs=0.02)


def factors(width: int, depth: int, rule: str, *, spectral: bool) -> dict[str, float]:
    config = configured(width, depth, rule)
    model = fresh(config)
    found = rate_factors(model, config.scale_rule, spectral=spectral)
    return {name: found[p] for name, p in model.named_parameters()}


@pytest.mark.parametrize("spectral", [False, True])
def test_every_factor_is_one_at_the_base(spectral: bool) -> None:
    for rule in ("rms", "mup"):
        assert set(factors(32, 2, rule, spectral=spectral).values()) == {1.0}


def test_factors_are_those_of_the_papers() -> None:
    adamw, muon = (factors(128, 8, "mup", spectral=spectral) for spectral in (False, True))
    layer = "model.layers.3."
    for found, hidden in ((adamw, 1 / 4), (muon, 1 / 2)):
        assert found["model.embed_tokens.weight"] == found["model.norm.weight"] == 1
        assert found["lm_head.weight"] == 1 / 4
        assert found[f"{layer}input_layernorm.weight"] == 1 / 2
        assert found[f"{layer}self_attn.q_proj.weight"] == hidden / 2
        assert found[f"{layer}mlp.down_proj.weight"] == found[f"{layer}self_attn.o_proj.weight"] == hidden / 4
    rates_alone = factors(128, 8, "rms", spectral=False)
    assert rates_alone[f"{layer}mlp.down_proj.weight"] == 1 / 8
    assert {name for name in adamw if adamw[name] != rates_alone[name]} == {
        name for name in adamw if "o_proj" in name or "down_proj" in name
    }


def test_tied_embeddings_have_the_rate_of_the_head(llama: Callable[..., nn.Module]) -> None:
    model = llama(tie_word_embeddings=True)
    rule = configured(32, 2, "mup", base=(16, 1)).scale_rule
    assert rate_factors(model, rule, spectral=False)[model.get_parameter("model.embed_tokens.weight")] == 0.5


def test_ternary_student_has_the_factors_of_its_teacher() -> None:
    config = configured(64, 4, "mup")
    teacher = fresh(config)
    student = ternary(teacher, config)
    theirs = rate_factors(teacher, config.scale_rule, spectral=False)
    ours = rate_factors(student, config.scale_rule, spectral=False)
    named = {name: theirs[p] for name, p in teacher.named_parameters()}
    for name, parameter in student.named_parameters():
        assert ours[parameter] == named.get(
            name.replace(".projection", ""), config.scale_rule.base_depth**-0.5
        )
    logits = run(student, tokens()).logits
    assert torch.equal(logits, run(ternary(teacher, configured(64, 4, "none")), tokens()).logits)


@pytest.mark.parametrize("kind", TYPES)
def test_a_step_takes_the_same_share_of_each_weight(kind: str) -> None:
    config = configured(128, 8, "mup", kind)
    groups = build_optimizer(fresh(config), config.stage2.optimizer, scale_rule=config.scale_rule).optimizers
    decays = {
        round(group["lr"] * group["weight_decay"], 12)
        for optimizer in groups
        for group in optimizer.param_groups
        if group["weight_decay"]
    }
    assert decays == {round(config.stage2.optimizer.lr * config.stage2.optimizer.weight_decay, 12)}


def test_initial_sizes_follow_the_rule() -> None:
    plain, scaled = fresh(configured(128, 8, "none")), fresh(configured(128, 8, "mup"))
    ratios = {
        name: rms(scaled.get_parameter(name)) / rms(p) for name, p in plain.named_parameters() if p.ndim == 2
    }
    assert ratios.pop("model.embed_tokens.weight") == 1
    assert ratios.pop("lm_head.weight") == pytest.approx(1 / 4)
    for name, ratio in ratios.items():
        assert ratio == pytest.approx(1 / 4 if "o_proj" in name or "down_proj" in name else 1 / 2)
    rates_alone = fresh(configured(128, 8, "rms"))
    assert all(torch.equal(p, rates_alone.get_parameter(name)) for name, p in plain.named_parameters())


@pytest.mark.parametrize("kind", TYPES)
def test_none_has_a_group_for_each_kind_of_parameter(kind: str) -> None:
    config = configured(64, 4, "none", kind)
    optimizer = build_optimizer(fresh(config), config.stage2.optimizer, scale_rule=config.scale_rule)
    groups = [group for each in optimizer.optimizers for group in each.param_groups]
    optimizer.close()
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert {group["lr"] for group in groups} == {0.008}


def test_rule_reaches_teacher_and_student(run_small: Callable[..., Outcome]) -> None:
    small = ("scale_rule.base_width=16", "scale_rule.base_depth=1")
    outcomes = {rule: run_small(f"scale_rule={rule}", *small) for rule in ("none", "rms", "mup")}
    assert len({weights_digest(outcome) for outcome in outcomes.values()}) == 3
    assert len({outcome.held_out.reference for outcome in outcomes.values()}) == 3
    at_the_base = ("scale_rule.base_width=32", "scale_rule.base_depth=2")
    plain = weights_digest(outcomes["none"])
    assert {weights_digest(run_small(f"scale_rule={rule}", *at_the_base)) for rule in ("rms", "mup")} == {
        plain
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scale_rule=mu"], "scale_rule: 'mu' is no choice; did you mean 'mup'?"),
        (["scale_rule.type=mu"], "scale_rule.type: input should be 'none', 'rms' or 'mup' (got 'mu')"),
        (["scale_rule=mup", "scale_rule.base_width=0"], "scale_rule.base_width: input should be greater"),
        (["scale_rule=rms", "recovery.max_steps=10"], "scale_rule.type: it has no rates for adapters"),
    ],
)
def test_other_rules_are_refused_in_a_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(overrides)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
