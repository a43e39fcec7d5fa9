"""What the packages use of their libraries: every library is declared, and what is used of its inside is bounded.

Any release may rename what a library keeps to itself: a fresh install next month would then break. So the source
is searched for such names; each stands here with its reason, and its library has an upper bound in pyproject.toml,
which `make test-newest` tries. Not found: a method of ours that stands in for a library's private one.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Set
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PACKAGES = ("sweeps", "trainer", "runners", "analysis")

DISTRIBUTIONS = {
    "ax": "ax-platform",
    "google.api_core": "google-api-core",
    "google.auth": "google-auth",
    "google.cloud.tpu_v2": "google-cloud-tpu",
    "hydra": "hydra-core",
    "jinja2": "jinja2",
    "kubernetes_validate": "kubernetes-validate",
    "linear_operator": "linear-operator",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
"""Modules whose distribution has another name."""

COMES_WITH = {
    "botocore": "boto3",  # its sessions and errors
    "google.protobuf": "google-cloud-tpu",  # its messages
    "huggingface_hub": "transformers",  # writes its checkpoints
    "markupsafe": "jinja2",  # its text
    "pydantic_core": "pydantic",  # its parser
    "requests": "google-auth",  # its session's errors
}
"""Modules of a distribution that a declared one requires and shows in its own interface."""

INTERFACES = {
    # Ax keeps only `ax.api` stable, and of that only the client and its configurations.
    "ax": ("ax.api.client", "ax.api.configs"),
    # Its documentation names the package alone.
    "gcsfs": ("gcsfs",),
    # What its documentation of plugins, callbacks and the compose API imports.
    "hydra": (
        "hydra", "hydra.core.config_store", "hydra.core.global_hydra", "hydra.core.utils", "hydra.errors",
        "hydra.experimental.callback", "hydra.plugins.*", "hydra.types",
    ),
    "submitit": ("submitit",),
    "tensorboardX": ("tensorboardX",),
    "torch_xla": ("torch_xla", "torch_xla.core.*", "torch_xla.debug.*", "torch_xla.distributed.*", "torch_xla.runtime"),
    "transformers": ("transformers", "transformers.utils.logging"),
}  # fmt: skip
"""Libraries whose modules can be imported and yet are no interface, and those of them that are one."""

INTERNALS = {
    "ax.adapter.*": "Ax's generators are driven directly: its client remembers what records do not hold",
    "ax.api.utils.*": "an experiment from the client's own configurations, without the client",
    "ax.core.*": "trials are attached to an experiment that is rebuilt from records",
    "ax:_acquisition": "the acquisition function that has found a candidate, to judge another by it",
    "ax:_optimization_config": "the objectives, of which Ax tells a transform in no other way",
    "ax.early_stopping.*": "the percentile rule, asked outside of Ax's orchestrator",
    "ax.exceptions.*": "what its generators raise",
    "ax.generators.torch.botorch_modular.*": "its default kernel, acquisition and fit, each changed in one point",
    "ax.generators.utils.*": "the options of an optimisation, as it lists them",
    "ax.utils.*": "sensitivities for the report",
    "botorch.acquisition.multi_objective.logei._load_attempted": "the kernel that it would compile, to leave that out",
    "gcsfs.core": "the class that opens no gRPC channel; the package's default probes the bucket for a minute",
    "hydra._internal.core_plugins.basic_launcher": "its default launcher's name, to refuse any other",
    "hydra.core.config_loader": "a type that its own sweepers are given",
    "hydra.core.object_type": "whether a name is a group, to say so where a key is misspelt",
    "hydra.core.override_parser.*": "its grammar of overrides, as its own sweepers read it",
    "optuna:_contains": "whether a distribution takes a value; Optuna's journal refuses it otherwise",
    "peft:_register_custom_module": "adapters on layers that peft does not know, as its guide describes",
    "submitit.core._submit": "what a batch script runs",
    "submitit.core.utils": "the error of an sbatch that failed",
    "submitit.slurm.slurm": "the script that it would submit, to be seen before",
    "tensorboardX.*": "event files without its writer, which starts a thread and imports much",
    "torch._dynamo.config": "how many graphs one layer's code may have, and none at the buckets of DDP",
    "torch._dynamo.utils": "counts of compiled graphs, where something was compiled",
    "torch._inductor.config": "the number of threads that compiled kernels are kept under",
    "torch._subclasses.fake_tensor": "a model's memory, found without allocating it",
    "torch.utils._python_dispatch": "a look at every operation of a step",
    "torch.utils._pytree": "the tensors among an operation's arguments",
    "torch:_apply": "what `Module.to` calls on all of a module",
    "torch:_backward_hooks": "whether a layer has torch_xla's barrier",
    "torch:_buffers": "whether a module has a buffer of ours, without a lookup that raises",
    "torch:_forward_hooks": "whether a module has a hook",
    "torch:_forward_pre_hooks": "as _forward_hooks",
    "torch.ops._c10d_functional": "collectives that a compiler puts into a layer's graph",
    "torch._foreach_norm": "norms of all gradients by a few launches; what torch clips with",
    "torch._scaled_mm": "products of float8; torch has no public ones",
    "torch:_is_in_bad_fork": "whether a CUDA device is open in a way that no fork survives",
    "torch:_step_supports_amp_scaling": "whether an optimizer can skip a step by a flag on the device",
    "torch:_version": "whether a tensor was changed in place",
    "torch_xla._XLAC": "the compiler's cache, graphs and shardings, which it shows nowhere else",
    "torch_xla._internal.tpu": "which TPU this is",
    "torch_xla.experimental.custom_kernel": "flash attention",
    "torch_xla.utils.checkpoint": "recomputation that XLA does not undo",
    "transformers.conversion_mapping": "its patterns of renamed weights, compiled before trials are forked",
    "transformers.integrations.bitnet": "packs ternary weights as its BitNet layers read them",
    "transformers.integrations.gguf.GGUF_ARCHS": "architectures whose GGUF files it reads without passing over a tensor",
    "transformers.masking_utils": "an attention of our own with the masks that it needs",
    "transformers.modeling_gguf_pytorch_utils": "which architectures it reads from GGUF, and its names of tensors",
    "transformers.modeling_utils": "as masking_utils: the attention itself",
    "transformers.models.*": "one model's class without importing all models",
    "transformers.utils.find_adapter_config_file": "whether it would load a model's adapters, or leave them out",
    "transformers:_attn_implementation": "which attention a loaded model has",
    "transformers:_gradient_checkpointing_func": "how its layers are recomputed",
    "transformers:_supports_sdpa": "whether a model's attention is one that we can replace",
}
"""A module, or `distribution:attribute`, each with why it is used; both may hold a `*`."""

STANDARD_LIBRARY = {"_exit"}
"""Private by name, public by documentation."""


def is_private(name: str) -> bool:
    """Return whether it has a leading underscore; `__dunder__` and Hydra's `_target_` are not private."""
    return name.startswith("_") and not name.endswith("_")


def is_inside(name: str) -> bool:
    """Return whether a library's dotted name is no part of its public interface."""
    public = INTERFACES.get(name.split(".")[0], ("*",))
    shown = any(
        fnmatchcase(known, pattern) for pattern in public for known in (name, name.rpartition(".")[0])
    )
    return not shown or any(map(is_private, name.split(".")))


class Source:
    """One module's names of libraries, and its own private ones."""

    def __init__(self, text: str) -> None:
        self.nodes = tuple(ast.walk(ast.parse(text)))
        self.imported = dict(self._imports())
        self.own = Counter(self._members())

    def _imports(self) -> Iterator[tuple[str, str]]:
        """Yield the local name of each import, and the library's dotted name."""
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    found = [(alias.asname or alias.name, alias.name) for alias in names]
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    found = [(alias.asname or alias.name, f"{module}.{alias.name}") for alias in names]
                case _:
                    continue
            for here, name in found:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top not in PACKAGES:
                    yield here, name

    def _members(self) -> Iterator[str]:
        """Attributes that classes of this module define, once for each class or assignment."""
        for node in self.nodes:
            match node:
                case ast.ClassDef(body=body):
                    for each in body:
                        match each:
                            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                                yield name
                            case (
                                ast.AnnAssign(target=ast.Name(id=name))
                                | ast.Assign(targets=[ast.Name(id=name)])
                            ):
                                yield name
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    yield name

    def private_attributes(self, everywhere: Counter[str]) -> Iterator[str]:
        """Those of objects that are not ours: with dots where the object was imported, else after a colon.

        Args:
            everywhere: attributes that any class of ours defines, which `self` may have inherited.
        """
        for node in self.nodes:
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                    ours = everywhere[name] > 0
                case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                    ours = everywhere[name] > 1  # the method that calls it, and the one that is called
                case ast.Attribute(attr=name):
                    ours = self.own[name] > 0
                case ast.Call(func=ast.Name(id=called), args=[_, ast.Constant(value=str(name)), *_]) if (
                    "attr" in called
                ):
                    ours = self.own[name] > 0
                case _:
                    continue
            if is_private(name) and not ours and name not in STANDARD_LIBRARY:
                root, _, rest = ast.unparse(node).partition(".")
                yield f"{self.imported[root]}.{rest}" if root in self.imported else f":{name}"

    def inside(self, everywhere: Counter[str], libraries: Set[str]) -> set[str]:
        """Return the private names of libraries that are used here, of `libraries` also those in texts."""
        texts = (
            node.value
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        spelt = (name for text in texts for name in DOTTED.findall(text))
        return {
            *(name for name in self.imported.values() if is_inside(name)),
            *(
                name
                for name in spelt
                if name.split(".")[0] in libraries and any(map(is_private, name.split(".")))
            ),
            *self.private_attributes(everywhere),
        }


DOTTED = re.compile(r"\b[a-z]\w*(?:\.\w+)+")


@cache
def sources() -> dict[str, Source]:
    return {
        str(file.relative_to(ROOT)): Source(file.read_text(encoding="utf-8"))
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
    }


@cache
def used_inside() -> frozenset[tuple[str, str]]:
    """Return each private name of a library that is used, with the file."""
    everywhere = Counter(name for source in sources().values() for name in source.own.elements())
    libraries = {name.split(".")[0] for source in sources().values() for name in source.imported.values()}
    return frozenset(
        (name, file) for file, source in sources().items() for name in source.inside(everywhere, libraries)
    )


def listed(name: str) -> str | None:
    """Return the entry of the table that matches a name."""
    if name.startswith(":"):
        return next((entry for entry in INTERNALS if fnmatchcase(name, "*:" + entry.partition(":")[2])), None)
    return next(
        (entry for entry in INTERNALS if any(fnmatchcase(name, entry + end) for end in ("", ".*"))), None
    )


def distribution_of(name: str) -> str:
    """Return the declared distribution that provides a library's name."""
    for module, distribution in (COMES_WITH | DISTRIBUTIONS).items():
        if f"{name}.".startswith(f"{module}."):
            return distribution
    return canonicalize_name(name.split(".")[0])


def requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of pyproject.toml by distribution: dependencies and extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[Requirement]] = {}
    for lines in (project["dependencies"], *project["optional-dependencies"].values()):
        for requirement in map(Requirement, lines):
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def test_every_library_is_declared():
    known = requirements()
    names = {(name, file) for file, source in sources().items() for name in source.imported.values()}
    assert {(name, file) for name, file in names if distribution_of(name) not in known} == set()


def test_uses_of_library_internals_are_listed():
    unlisted = {(name, file) for name, file in used_inside() if not listed(name)}
    assert unlisted == set(), (
        "take what the library documents, or list it here and bound it in pyproject.toml"
    )


def test_nothing_is_listed_that_is_not_used():
    used = {listed(name) for name, _ in used_inside()}
    assert set(INTERNALS) - used == set()


@pytest.mark.parametrize(
    "distribution", sorted({distribution_of(entry.split(":")[0]) for entry in INTERNALS})
)
def test_a_library_whose_inside_is_used_has_an_upper_bound(distribution):
    asked = requirements()[distribution]
    bounded = [any(bound.operator in ("<", "<=", "==") for bound in each.specifier) for each in asked]
    assert all(bounded), f"bound it in pyproject.toml: {', '.join(map(str, asked))}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch\ntorch._dynamo", {"torch._dynamo"}),
        ("import torch._inductor.config as inductor", {"torch._inductor.config"}),
        ("from click._compat import strip_ansi", {"click._compat.strip_ansi"}),
        ("from rich import _loop", {"rich._loop"}),
        ("from ax.core.trial import Trial", {"ax.core.trial.Trial"}),
        ("from click import Group as Base\nBase._commands", {"click.Group._commands"}),
        (
            "TARGET = 'hydra._internal.core_plugins.basic_sweeper'",
            {"hydra._internal.core_plugins.basic_sweeper"},
        ),
        ("client._session = None", {":_session"}),
        ("getattr(model, '_no_split_modules', None)", {":_no_split_modules"}),
        ("class A(B):\n    def f(self):\n        return self._of_nobody", {":_of_nobody"}),
        ("class A(B):\n    def _once(self):\n        return super()._once()", {":_once"}),
        ("def _same(other):\n    return other._same", {":_same"}),
        ("class A:\n    _kept = 1\n\nA()._kept", set()),
        ("class A:\n    def f(self, other):\n        self._x = 1\n        return other._x", set()),
        ("import os\nos._exit(0)\nmodel.__class__\nconfig._target_", set()),
        ("from ax.api.client import Client\nfrom torch import nn\nimport gcsfs", set()),
    ],
)
def test_the_search_finds_what_is_inside(source, found):
    module = Source(source)
    assert module.inside(module.own, {"hydra"}) == found
