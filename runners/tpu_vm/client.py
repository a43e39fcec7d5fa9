"""Thin client of the TPU service: lists, creates and deletes. The only user of google.cloud.tpu.

No call waits for its operation: the outcome is observed when the service is asked again, so a lost answer
needs no special case.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from google.api_core import exceptions, retry
from google.cloud import tpu_v2
from google.protobuf.json_format import ParseDict

from runners.errors import EngineFailed
from runners.pools.pool import Pool
from runners.tpu_vm import render
from runners.tpu_vm.decide import Create, Delete, Outcome
from runners.tpu_vm.observed import Observed, Resource
from runners.tpu_vm.options import TpuOptions
from runners.tpu_vm.render import vm_id, worker_of
from runners.tpu_vm.vm_script import ENDED, vm_script

NAME = "tpu-vm"
_CALL_S = 60.0
_OPERATION_S = 3600.0  # then it counts as lost, and what is observed decides
_AMBIGUOUS = (  # the call may have taken effect all the same
    exceptions.ServerError,
    exceptions.Aborted,
    exceptions.Cancelled,
    exceptions.RetryError,
)
_RETRY = retry.Retry(
    predicate=retry.if_exception_type(exceptions.ServiceUnavailable, exceptions.DeadlineExceeded),
    initial=1.0,
    maximum=10.0,
    timeout=_CALL_S,
)


@dataclass(frozen=True, kw_only=True)
class _Pending:
    create: Create
    operation: Any  # an Operation of google.api_core, which has no types
    since: float


class TpuVms:
    """VMs of one pool, as the service knows them.

    Args:
        client: client of the service; None: one with this machine's credentials.
        retries: retry policy of calls that only read.
    """

    def __init__(
        self,
        pool: Pool,
        options: TpuOptions,
        *,
        client: tpu_v2.TpuClient | None = None,
        retries: retry.Retry = _RETRY,
    ) -> None:
        self._pool, self._options, self._retries = pool, options, retries
        self._client = client or connect()
        self._script = vm_script(pool, options)
        self._pending: dict[int, _Pending] = {}

    def observe(self, *, strict: bool = False) -> Observed:
        """Return the state of the pool in all its zones.

        Args:
            strict: raise `EngineFailed` for a zone that does not answer, else return it as unreachable.
        """
        resources: list[Resource] = []
        unreachable: set[str] = set()
        for zone in self._options.zones:
            try:
                resources += self._zone(zone)
            except exceptions.GoogleAPIError as error:
                if strict:
                    raise EngineFailed(NAME, f"{zone}: {_message(error)}") from None
                unreachable.add(zone)
        return Observed(
            resources=tuple(resources), unreachable=frozenset(unreachable), pending=frozenset(self._pending)
        )

    def create(self, create: Create) -> tuple[Outcome, str]:
        """Request a VM; `finished_creations` yields the outcome of an accepted request later."""
        parent = render.parent(self._options.project, create.zone)
        name = vm_id(self._pool.label, create.worker)
        arguments = (self._pool, self._options, create.worker, create.zone, self._script)
        begun = create.has_begun
        try:
            if self._options.queued:
                operation = self._client.create_queued_resource(
                    parent=parent,
                    queued_resource_id=name,
                    queued_resource=_parse(
                        tpu_v2.QueuedResource, render.queued_resource(*arguments, has_begun=begun)
                    ),
                    timeout=_CALL_S,
                )
            else:
                operation = self._client.create_node(
                    parent=parent,
                    node_id=name,
                    node=_parse(tpu_v2.Node, render.node(*arguments, has_begun=begun)),
                    timeout=_CALL_S,
                )
        except exceptions.GoogleAPIError as error:
            return _outcome(error), _message(error)
        self._pending[create.worker] = _Pending(create=create, operation=operation, since=time.monotonic())
        return "accepted", ""

    def finished_creations(self) -> Iterator[tuple[Create, Outcome, str]]:
        """Yield each creation whose outcome has become known, once, with the error message."""
        for worker, pending in list(self._pending.items()):
            try:
                if not pending.operation.done(retry=self._retries):
                    if time.monotonic() - pending.since < _OPERATION_S:
                        continue
                    result: tuple[Outcome, str] = ("unknown", "its operation did not finish in time")
                elif (error := pending.operation.exception()) is not None:
                    result = (_outcome(error), _message(error))
                else:
                    result = ("accepted", "")
            except exceptions.GoogleAPIError as error:
                if (
                    not isinstance(error, exceptions.NotFound)
                    and time.monotonic() - pending.since < _OPERATION_S
                ):
                    continue
                result = ("unknown", _message(error))
            del self._pending[worker]
            yield pending.create, *result

    def delete(self, delete: Delete) -> str:
        """Delete with force; return the error message, or "" also where it is gone already."""
        folder = "queuedResources" if delete.kind == "queued" else "nodes"
        name = f"{render.parent(self._options.project, delete.zone)}/{folder}/{delete.id}"
        try:
            if delete.kind == "queued":
                self._client.delete_queued_resource(
                    tpu_v2.DeleteQueuedResourceRequest(name=name, force=True), timeout=_CALL_S
                )
            else:
                self._client.delete_node(name=name, timeout=_CALL_S)
        except exceptions.NotFound:
            return ""
        except exceptions.GoogleAPIError as error:
            return _message(error)
        return ""

    def _zone(self, zone: str) -> Iterator[Resource]:
        parent = render.parent(self._options.project, zone)
        call: dict[str, Any] = {"retry": self._retries, "timeout": _CALL_S}
        # Requests first: the node of one that was ACTIVE then exists by now.
        requests = [
            self._request(zone, each) for each in self._client.list_queued_resources(parent=parent, **call)
        ]
        nodes = {
            node.id: node
            for each in self._client.list_nodes(parent=parent, **call)
            if (node := self._node(zone, each))
        }
        for request in requests:
            if request is None:
                continue
            yield request
            if request.state == "ACTIVE" and request.id not in nodes:
                try:  # lists may lag behind; a get by name does not
                    late = self._client.get_node(name=f"{parent}/nodes/{request.id}", **call)
                except exceptions.NotFound:
                    continue
                if (found := self._node(zone, late)) is not None:
                    nodes[found.id] = found
        for node in nodes.values():
            yield (
                replace(node, ended=self._exit_status(f"{parent}/nodes/{node.id}"))
                if node.state == "READY"
                else node
            )

    def _request(self, zone: str, found: tpu_v2.QueuedResource) -> Resource | None:
        id_ = found.name.rsplit("/", 1)[-1]
        labels = {key: value for spec in found.tpu.node_spec for key, value in spec.node.labels.items()}
        worker = worker_of(self._pool.label, id_, labels)
        if worker is None:
            return None
        error = found.state.failed_data.error
        return Resource(
            kind="queued",
            zone=zone,
            worker=worker,
            id=id_,
            state=found.state.state.name,
            code=error.code,
            problem=error.message,
            has_begun=render.BEGUN_LABEL in labels,
        )

    def _node(self, zone: str, found: tpu_v2.Node) -> Resource | None:
        id_ = found.name.rsplit("/", 1)[-1]
        worker = worker_of(self._pool.label, id_, dict(found.labels))
        if worker is None:
            return None
        return Resource(
            kind="node",
            zone=zone,
            worker=worker,
            id=id_,
            state=found.state.name,
            uid=f"{zone}/{found.id}",
            has_begun=render.BEGUN_LABEL in found.labels,
        )

    def _exit_status(self, node: str) -> str:
        try:
            attributes = self._client.get_guest_attributes(
                tpu_v2.GetGuestAttributesRequest(name=node, query_path=f"/{ENDED}"),
                retry=self._retries,
                timeout=_CALL_S,
            )
        except exceptions.GoogleAPIError:
            return ""  # not set yet, or asked again at the next observation
        items = [item for each in attributes.guest_attributes for item in each.query_value.items]
        values = [each.value.strip() for each in items if f"{each.namespace}/{each.key}" == ENDED]
        return next((value for value in values if value), "")


def connect() -> tpu_v2.TpuClient:
    """Return a client with this machine's credentials. Raises `EngineFailed` where it has none."""
    from google.auth.exceptions import GoogleAuthError

    try:
        return tpu_v2.TpuClient()
    except GoogleAuthError as error:
        problem = str(error).rstrip(". ")
        raise EngineFailed(NAME, f"{problem}; run: gcloud auth application-default login") from None


def _parse(kind: Any, value: dict[str, Any]) -> Any:
    """Return a message of the service; a field that it does not have is an error."""
    return kind.wrap(ParseDict(value, kind.pb(kind())))


def _outcome(error: Exception) -> Outcome:
    if isinstance(error, exceptions.AlreadyExists):
        return "exists"
    if isinstance(error, exceptions.ResourceExhausted | exceptions.TooManyRequests):
        return "stockout"
    if isinstance(error, exceptions.ClientError) and not isinstance(error, _AMBIGUOUS):
        return "refused"
    return "unknown"


def _message(error: Exception) -> str:
    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    return " ".join(str(getattr(error, "message", "") or error).split())
