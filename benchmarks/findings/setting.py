"""Lengths of stages and compared conditions for the findings. Pure.

A condition is a set of Hydra overrides; the same condition in two findings is one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Condition = tuple[str, ...]
"""Overrides of the trainer, in one order, so that equal conditions are equal."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Lengths of stages for one model.

    Args:
        lengths: steps of Stage 1.9 in the length sweep, ascending, without 0.
        usual: the length that the other findings use; one of `lengths`.
        stage2_steps: the fixed Stage 2.
        lambda_steps: warmup of lambda.
        early_steps: Stage 2's first steps, whose mean training loss is its start.
        common: overrides of every run.
        budgets: effective steps (2 per step of Stage 1.9, 1 per step of Stage 2) → steps of Stage 1.9 to try.
    """

    lengths: tuple[int, ...]
    usual: int
    stage2_steps: int
    lambda_steps: int
    early_steps: int
    common: Condition = ()
    budgets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def condition(
        self, stage1_9: int, stage2: int | None = None, *, warmup: bool = True, saliency: bool = False
    ) -> Condition:
        """Return the overrides of one way to train."""
        return (
            f"stage1_9.max_steps={stage1_9}",
            f"stage2.max_steps={self.stage2_steps if stage2 is None else stage2}",
            f"stage1_9.saliency.enabled={str(saliency and stage1_9 > 0).lower()}",
            f"stage2.lambda_warmup.enabled={str(warmup).lower()}",
            f"stage2.lambda_warmup.warmup_steps={self.lambda_steps}",
            "stage2.lambda_warmup.start=0",  # the notebook's
        )

    def split(self, budget: int, stage1_9: int) -> Condition:
        """Return the condition of `budget` effective steps, of which `stage1_9` steps go to Stage 1.9."""
        return self.condition(stage1_9, budget - 2 * stage1_9)

    def common_splits(self) -> tuple[int, ...]:
        """Return the lengths of Stage 1.9 that are tried with every budget; none for a single budget."""
        if len(self.budgets) < 2:
            return ()
        return tuple(sorted(set.intersection(*map(set, self.budgets.values())) - {0}))

    def conditions(self) -> tuple[Condition, ...]:
        """Return every condition that some finding needs, each once."""
        wanted = [self.condition(length) for length in (0, self.usual)]
        wanted += [self.condition(length) for length in self.lengths]
        wanted += [self.condition(length, warmup=False) for length in (0, self.usual)]
        wanted += [self.condition(self.usual, warmup=warmup, saliency=True) for warmup in (True, False)]
        wanted += [self.split(budget, steps) for budget, tried in self.budgets.items() for steps in tried]
        return tuple(dict.fromkeys(wanted))


# Sixty steps of Stage 2 leave the student about as far from its teacher as the notebook's 200 did.
# Half the usual batch: five seeds of everything must end within 40 minutes on two cores.
TINY = Setting(
    lengths=(25, 50, 100, 200),
    usual=100,
    stage2_steps=60,
    lambda_steps=20,
    early_steps=10,
    common=("stage1_9.batch_size=8", "stage2.batch_size=8"),
    budgets={160: (0, 10, 25, 50), 320: (0, 50, 100, 130)},
)
# The research notebook's own lengths (SmolLM2-135M on an A40).
NOTEBOOK = Setting(
    lengths=(50, 100, 200, 500, 1000),
    usual=200,
    stage2_steps=200,
    lambda_steps=100,
    early_steps=10,
    budgets={600: (0, 50, 100, 200), 1200: (0, 100, 300, 500)},
)


def setting_for(overrides: tuple[str, ...]) -> Setting:
    """Return the notebook's lengths for any model but the tiny one."""
    models = [text.partition("=")[2] for text in overrides if text.startswith("model=")]
    return TINY if models in ([], ["tiny"]) else NOTEBOOK
