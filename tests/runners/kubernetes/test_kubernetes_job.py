"""The Job is one that Kubernetes' own schema takes, its words survive Kubernetes, and a wrong pool is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import golden_messages
import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from runners_pools import FULL, hostile, plain, suited

from runners.errors import PoolError
from runners.kubernetes.job import job, literal
from runners.kubernetes.options import options_of
from runners.kubernetes.runner import RUNNER
from runners.pools.engines import check_storage
from runners.pools.pool import Pool
from runners.pools.script import worker_script

PLAIN = plain("kubernetes")
IMAGE = PLAIN.options


def with_options(pool: Pool = PLAIN, **options: object) -> Pool:
    return replace(pool, options={**IMAGE, **options})


POOLS = {
    "plain": PLAIN,
    "gpus": suited("kubernetes", FULL),
    "spot TPUs": replace(PLAIN, accelerator="v6e-4", spot=True),
    "elsewhere": with_options(
        replace(PLAIN, accelerator="NVIDIA-A100-SXM4-80GB", spot=True),
        cluster="eks",
        cpu="8",
        memory="64Gi",
        service_account="worker",
        node_selector={"disk": "ssd"},
        tolerations=[{"key": "mine", "operator": "Exists"}],
    ),
    "on a claim": with_options(replace(PLAIN, storage="/mnt/sweeps/toy"), volume="sweeps-rwx:/mnt/sweeps"),
    "GPUs on a claim": with_options(
        replace(PLAIN, storage="/mnt/sweeps/toy", accelerator="nvidia-l4", accelerator_count=4),
        volume="sweeps-rwx:/mnt/sweeps",
    ),
    "on NFS": with_options(
        replace(PLAIN, storage="/mnt/sweeps/toy"), volume="10.0.0.2:/export/a:/mnt/sweeps/"
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_the_schema_takes_it(name):
    for artifact, text in RUNNER.render(POOLS[name]).items():
        manifest = yaml.safe_load(text)
        if artifact == "secret.yaml":
            manifest["data"] = {}  # its values stand there by name
        kubernetes_validate.validate(
            manifest, "1.33", strict=True
        )  # where backoffLimitPerIndex became stable


def spec(pool: Pool) -> dict:
    return job(pool, options_of(pool))["spec"]


def test_spot_tpus_are_selected_tolerated_and_asked_for_whole():
    pod = spec(POOLS["spot TPUs"])["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "2x2",
        "cloud.google.com/gke-spot": "true",
    }
    assert {each["key"] for each in pod["tolerations"]} == {"google.com/tpu", "cloud.google.com/gke-spot"}
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert {"name": "PJRT_DEVICE", "value": "TPU"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("on a claim", {"persistentVolumeClaim": {"claimName": "sweeps-rwx"}}),
        ("on NFS", {"nfs": {"server": "10.0.0.2", "path": "/export/a"}}),
    ],
)
def test_a_sweep_in_a_folder_is_mounted_where_it_is_here(name: str, source: dict[str, object]) -> None:
    check_storage(RUNNER, POOLS[name])
    pod = spec(POOLS[name])["template"]["spec"]
    (volume,), (container,) = pod["volumes"], pod["containers"]
    assert {key: value for key, value in volume.items() if key != "name"} == source
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/mnt/sweeps"}]


SHM = {"name": "dshm", "mountPath": "/dev/shm"}


@pytest.mark.parametrize(
    ("accelerator", "count", "volume", "mounts"),
    [
        ("nvidia-l4", 4, "", [SHM]),
        ("nvidia-l4", 4, "claim:/mnt", [{"name": "sweeps", "mountPath": "/mnt"}, SHM]),
        ("nvidia-l4", 4, "claim:/dev/shm", [{"name": "sweeps", "mountPath": "/dev/shm"}]),
        ("nvidia-l4", 1, "", []),
        ("v6e-4", 1, "", []),
    ],
)
def test_several_gpus_have_shared_memory(
    accelerator: str, count: int, volume: str, mounts: list[dict[str, str]]
) -> None:
    """A container has 64 MiB of it, which NCCL fills where GPUs do not reach each other's memory."""
    pool = with_options(replace(PLAIN, accelerator=accelerator, accelerator_count=count), volume=volume)
    pod = spec(pool)["template"]["spec"]
    assert pod["containers"][0].get("volumeMounts", []) == mounts
    volumes = {each["name"]: each for each in pod.get("volumes", ())}
    assert sorted(volumes) == sorted(each["name"] for each in mounts)
    if SHM in mounts:
        assert volumes["dshm"] == {"name": "dshm", "emptyDir": {"medium": "Memory"}}


@pytest.mark.parametrize("storage", ["/home/me/sweeps/toy", "/mnt/sweeps-of-others/toy"])
def test_a_folder_beside_the_volume_is_refused(storage: str) -> None:
    with pytest.raises(PoolError, match="--option volume=CLAIM:FOLDER"):
        check_storage(RUNNER, with_options(replace(PLAIN, storage=storage), volume="claim:/mnt/sweeps"))


@pytest.mark.parametrize(
    "volume",
    ["claim", "claim:mnt", "claim:/", "Claim:/mnt", ":/mnt", "host:path:/mnt", "a:/b:/c:/d", "c:/m/../.."],
)
def test_a_volume_that_cannot_be_mounted_is_refused(volume: str) -> None:
    with pytest.raises(PoolError, match=r"volume: .*write CLAIM:FOLDER, or SERVER:/PATH:FOLDER"):
        spec(with_options(volume=volume))


def test_other_clusters_have_other_labels():
    pod = spec(POOLS["elsewhere"])["template"]["spec"]
    assert pod["nodeSelector"] == {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "eks.amazonaws.com/capacityType": "SPOT",
        "disk": "ssd",
    }
    assert pod["containers"][0]["resources"]["requests"] == {
        "cpu": "8",
        "memory": "64Gi",
        "nvidia.com/gpu": "1",
    }


@pytest.mark.parametrize(
    ("status", "action"), [(2, "FailIndex"), (42, "FailIndex"), (75, "Ignore"), (1, None), (137, None)]
)
def test_every_end_of_a_worker_has_its_meaning(status, action):
    rules = spec(PLAIN)["podFailurePolicy"]["rules"]
    found = [each["action"] for each in rules if status in each.get("onExitCodes", {}).get("values", ())]
    assert found == ([action] if action else [])


def expanded(text: str) -> str:
    """Expand a word of `command` as Kubernetes does where it knows every variable: $(NAME), and $$ for $."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else "EXPANDED", text)


@given(hostile)
def test_whatever_a_field_holds_reaches_the_shell_as_it_is(text):
    pool = replace(PLAIN, environment={"X": f"$(X) {text}"}, command=("worker", text))
    (container,) = yaml.safe_load(RUNNER.render(pool)["job.yaml"])["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["bash", "-c"]
    assert expanded(container["command"][2]) == worker_script(pool)
    assert expanded(literal(text)) == text


# fmt: off
CASES = {
    "no image": with_options(image=""),
    "misspelt": with_options(img="x"),
    "no such cluster": with_options(cluster="k3s"),
    "a number as image": with_options(image=3),
    "a TPU of several hosts": replace(PLAIN, accelerator="v6e-16"),
    "a TPU elsewhere": with_options(replace(PLAIN, accelerator="v6e-4"), cluster="eks"),
    "two TPUs": replace(PLAIN, accelerator="v6e-4", accelerator_count=2),
    "spot somewhere": with_options(replace(PLAIN, spot=True), cluster="other"),
}
# fmt: on


def test_they_are_refused_as_the_page_says():
    calls = {case: partial(RUNNER.render, pool) for case, pool in CASES.items()}
    golden_messages.compare_refusals("Pools on Kubernetes", PoolError, calls)
