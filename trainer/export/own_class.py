"""Source code of a class for students that transformers has none for. Used by `target`.

The class is the teacher's own, with a normalisation before the projections. Its configuration has a
`model_type` of its own: under the teacher's, transformers would silently load the teacher's class without
the normalisations wherever `trust_remote_code` is not set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from trainer.models.subln import BEFORE, EPS

MODULE = "modeling_subln"

_SOURCE = '''"""{base} with an RMS normalisation (SubLN) before each {before}. Written by stagesweep.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
"""

from collections import OrderedDict

import torch
from torch import nn
from transformers import {base}, {base_config}


class {own_config}({base_config}):
    model_type = "{model_type}"


class SubLN(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float()).to(x.dtype)


class {own}({base}):
    config_class = {own_config}

    def __init__(self, config):
        super().__init__(config)
        eps = getattr(config, "rms_norm_eps", {eps})
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in {names}:
                norm = SubLN(module.in_features, eps)
                self.set_submodule(name, nn.Sequential(OrderedDict(norm=norm, projection=module)))
'''


@dataclass(frozen=True, kw_only=True)
class OwnClass:
    """A class that transformers does not have.

    Args:
        config: transformers' configuration, which names the class and its file.
        files: source code by file name.
    """

    name: str
    config: Any
    files: dict[str, str]


def with_subln(student: nn.Module) -> OwnClass:
    """Return the class of the student's teacher, with SubLN."""
    theirs = cast(Any, student).config
    base, base_config = type(student).__name__, type(theirs).__name__
    own, own_config = f"SubLN{base}", f"SubLN{base_config}"
    model_type = f"subln_{theirs.model_type}"
    # transformers writes the class's `model_type` and ignores that of the dictionary.
    subclass: Any = type(own_config, (type(theirs),), {"model_type": model_type})
    named = {
        "model_type": model_type,
        "architectures": [own],
        "auto_map": {"AutoConfig": f"{MODULE}.{own_config}", "AutoModelForCausalLM": f"{MODULE}.{own}"},
    }
    source = _SOURCE.format(
        base=base,
        base_config=base_config,
        own=own,
        own_config=own_config,
        model_type=model_type,
        eps=EPS,
        before=" and ".join(BEFORE),
        names=BEFORE,
    )
    return OwnClass(
        name=own, config=subclass.from_dict(theirs.to_dict() | named), files={f"{MODULE}.py": source}
    )
