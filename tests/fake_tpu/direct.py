"""Stand-in for `runners.tpu_vm.client` without gRPC: thousands of steps a second, for property tests."""

from __future__ import annotations

from collections.abc import Iterator

from fake_tpu.cloud import Cloud, Operation, Refused
from runners.tpu_vm.decide import Create, Delete, Outcome
from runners.tpu_vm.observed import Observed, Resource

_OUTCOMES: dict[int, Outcome] = {6: "exists", 8: "stockout"}


class Direct:
    """Client that calls `Cloud` directly.

    Args:
        cloud: the service.
        zones: the zones of the pool.
        queued: create queued resources, else nodes.
    """

    def __init__(self, cloud: Cloud, zones: tuple[str, ...], *, queued: bool) -> None:
        self.cloud, self.zones, self.queued = cloud, zones, queued
        self.unreachable: set[str] = set()
        self.lost: list[str] = []
        self.pending: dict[int, tuple[Create, Operation]] = {}

    def observe(self, *, strict: bool = False) -> Observed:
        resources = [
            Resource(
                kind="queued",
                zone=zone,
                worker=int(id_),
                id=id_,
                state=each.state,
                code=each.code,
                problem=each.problem,
                has_begun=each.spec.has_begun,
            )
            for (zone, id_), each in self.cloud.requests.items()
        ]
        resources += [
            Resource(
                kind="node",
                zone=zone,
                worker=int(id_),
                id=id_,
                state=each.state,
                uid=str(each.number),
                ended=each.ended if each.state == "READY" else "",
                has_begun=each.spec.has_begun,
            )
            for (zone, id_), each in self.cloud.nodes.items()
        ]
        return Observed(
            resources=tuple(
                each for each in resources if each.zone in self.zones and each.zone not in self.unreachable
            ),
            unreachable=frozenset(self.unreachable),
            pending=frozenset(self.pending),
        )

    def create(self, create: Create) -> tuple[Outcome, str]:
        fault = self.lost.pop() if self.lost else ""
        id_ = str(create.worker)
        if fault == "down":
            return "unknown", "down"
        try:
            if self.queued:
                operation = self.cloud.create_request(create.zone, id_, create, node_id=id_, spot=True)
            else:
                operation = self.cloud.create_node(create.zone, id_, create)
        except Refused as refused:
            return _OUTCOMES.get(refused.code, "refused"), refused.message
        if fault == "lost":
            return "unknown", "lost"
        self.pending[create.worker] = create, operation
        return "accepted", ""

    def finished_creations(self) -> Iterator[tuple[Create, Outcome, str]]:
        for worker, (create, operation) in list(self.pending.items()):
            if operation.done:
                del self.pending[worker]
                error = operation.error
                yield (
                    create,
                    "accepted" if error is None else _OUTCOMES.get(error.code, "refused"),
                    str(error or ""),
                )

    def delete(self, delete: Delete) -> str:
        try:
            if delete.kind == "queued":
                self.cloud.delete_request(delete.zone, delete.id, force=True)
            else:
                self.cloud.delete_node(delete.zone, delete.id)
        except Refused as refused:
            return refused.message
        return ""
