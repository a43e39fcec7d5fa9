"""A pool that this engine cannot start is refused in one line that names the field."""

from __future__ import annotations

import tomllib
from pathlib import Path

import golden_messages
from packaging.requirements import Requirement

from runners.errors import PoolError
from runners.pools.pool import Pool
from runners.tpu_versions import REQUIREMENTS
from runners.tpu_vm.options import check_vms, options_of

GOOD = {"project": "my-project", "zones": "us-east5-b, us-central2-b", "package": "gs://b/s.whl"}


def pool(accelerator: str = "v6e-4", **options: object) -> Pool:
    return Pool(
        name="s",
        storage="gs://b/s",
        folder=Path(),
        workers=1,
        command=("w",),
        accelerator=accelerator,
        options={key: value for key, value in {**GOOD, **options}.items() if value is not None},
    )


def test_zones_and_image_of_options():
    assert options_of(pool()).zones == ("us-east5-b", "us-central2-b")
    assert options_of(pool(zones=["us-east5-b"])).zones == ("us-east5-b",)


CASES = {
    "no project": pool(project=None),
    "no package": pool(package=None),
    "no zones": pool(zones=""),
    "a zone twice": pool(zones="a,a"),
    "a path as zone": pool(zones="us-east5-b/../x"),
    "misspelt": pool(zone="a"),
    "a wait of no time": pool(wait_minutes=0),
    "a hostile project": pool(project="p/locations/x"),
    "no accelerator": pool(""),
    "several hosts": pool("v5litepod-16"),
    "of the future": pool("v9-4"),
}


def test_they_are_refused_as_the_page_says():
    calls = {
        case: lambda wanted=wanted: check_vms(wanted, options_of(wanted)) for case, wanted in CASES.items()
    }
    golden_messages.compare_refusals("Pools of TPU VMs", PoolError, calls)


def test_an_image_can_be_named_for_what_is_not_known_here():
    assert options_of(pool("v9-4", runtime_version="v2-alpha-tpuv9")).runtime_version == "v2-alpha-tpuv9"


def test_the_vm_gets_versions_that_the_extras_allow():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = [Requirement(text) for name in ("xla", "tpu") for text in project["optional-dependencies"][name]]
    installed = {Requirement(text).name: Requirement(text).specifier for text in REQUIREMENTS}
    allowed = [extra for extra in extras if extra.name != project["name"]]
    assert {extra.name for extra in allowed} == set(installed)
    for extra in allowed:
        assert all(extra.specifier.contains(each.version) for each in installed[extra.name]), extra
