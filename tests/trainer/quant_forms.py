"""The forms that a quantised layer can take, for the tests of layers and stages."""

from __future__ import annotations

import itertools

from trainer.config import QuantConfig

BITNET = QuantConfig(weight_scale="absmean", group_size=None, activations="int8")
GROUP = 8  # divides the layers' inputs in every test that uses FORMS

FORMS = {
    f"{scale}, {'one scale' if group is None else f'groups of {group}'}, {activations}": QuantConfig(
        weight_scale=scale, group_size=group, activations=activations
    )
    for scale, group, activations in itertools.product(
        ("absmean", "absmedian"), (None, GROUP), ("int8", "none")
    )
}
