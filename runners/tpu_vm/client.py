"""The thin client of `tpu-vm`: looks, creates and deletes; it decides nothing. The only file that knows
google.cloud.tpu.

No call waits for its end: what came of it is seen when the service is asked again, so a lost answer is
nothing special.
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
from runners.tpu_vm.names import vm_id, worker_of
from runners.tpu_vm.observed import Observed, Resource
from runners.tpu_vm.options import TpuOptions
from runners.tpu_vm.vm_script import ENDED, vm_script

NAME = "tpu-vm"
_CALL_S = 60.0
_OPERATION_S = 3600.0  # then it counts as lost, and what is seen decides
_MAYBE = (  # it may have been done all the same
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
    """The VMs of one pool, as the service knows them.

    Args:
        client: a `tpu_v2.TpuClient`; None: one with this machine's credentials.
        again: how a look that failed is repeated.
    """

    def __init__(
        self,
        pool: Pool,
        options: TpuOptions,
        *,
        client: tpu_v2.TpuClient | None = None,
        again: retry.Retry = _RETRY,
    ) -> None:
        self._pool, self._options, self._again = pool, options, again
        self._client = client or _connect()
        self._script = vm_script(pool, options)
        self._pending: dict[int, _Pending] = {}

    def look(self, *, blame: bool = False) -> Observed:
        """All that there is of the pool, in all its zones.

        Args:
            blame: raise `EngineFailed` where a zone refuses to be looked at, rather than call it blind.
        """
        things: list[Resource] = []
        blind: dict[str, str] = {}
        for zone in self._options.zones:
            try:
                things += self._zone(zone)
            except exceptions.GoogleAPIError as error:
                if blame:
                    raise EngineFailed(NAME, f"{zone}: {_words(error)}") from None
                blind[zone] = _words(error)
        return Observed(things=tuple(things), blind=frozenset(blind), pending=frozenset(self._pending))

    def create(self, create: Create) -> tuple[Outcome, str]:
        """Ask for a VM. `settled` tells later what came of an accepted one."""
        parent, name = (
            render.parent(self._options.project, create.zone),
            vm_id(self._pool.label, create.worker),
        )
        given = (self._pool, self._options, create.worker, create.zone, self._script)
        try:
            if self._options.queued:
                promise = self._client.create_queued_resource(
                    parent=parent,
                    queued_resource_id=name,
                    queued_resource=_message(tpu_v2.QueuedResource, render.queued_resource(*given)),
                    timeout=_CALL_S,
                )
            else:
                promise = self._client.create_node(
                    parent=parent,
                    node_id=name,
                    node=_message(tpu_v2.Node, render.node(*given)),
                    timeout=_CALL_S,
                )
        except exceptions.GoogleAPIError as error:
            return _outcome(error), _words(error)
        self._pending[create.worker] = _Pending(create=create, operation=promise, since=time.monotonic())
        return "accepted", ""

    def settled(self) -> Iterator[tuple[Create, Outcome, str]]:
        """The creations whose end is known now, each once."""
        for worker, pending in list(self._pending.items()):
            try:
                if not pending.operation.done(retry=self._again):
                    if time.monotonic() - pending.since < _OPERATION_S:
                        continue
                    result: tuple[Outcome, str] = ("unknown", "no end of it was seen")
                elif (error := pending.operation.exception()) is not None:
                    result = (_outcome(error), _words(error))
                else:
                    result = ("accepted", "")
            except exceptions.GoogleAPIError as error:
                if (
                    not isinstance(error, exceptions.NotFound)
                    and time.monotonic() - pending.since < _OPERATION_S
                ):
                    continue
                result = ("unknown", _words(error))
            del self._pending[worker]
            yield pending.create, *result

    def delete(self, delete: Delete) -> str:
        """Delete with force. What was wrong with that, or ""; one that is gone already is no trouble."""
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
            return _words(error)
        return ""

    def _zone(self, zone: str) -> Iterator[Resource]:
        parent = render.parent(self._options.project, zone)
        call: dict[str, Any] = {"retry": self._again, "timeout": _CALL_S}
        # Requests first: the node of an ACTIVE one that was there then is there now.
        requests = [
            self._request(zone, each) for each in self._client.list_queued_resources(parent=parent, **call)
        ]
        nodes = {
            thing.id: thing
            for each in self._client.list_nodes(parent=parent, **call)
            if (thing := self._node(zone, each))
        }
        for request in requests:
            if request is None:
                continue
            yield request
            if request.state == "ACTIVE" and request.id not in nodes:
                try:  # a list may lag behind; a name does not
                    asked = self._node(
                        zone, self._client.get_node(name=f"{parent}/nodes/{request.id}", **call)
                    )
                except exceptions.NotFound:
                    continue
                if asked is not None:
                    nodes[asked.id] = asked
        for node in nodes.values():
            yield (
                replace(node, ended=self._ended(f"{parent}/nodes/{node.id}"))
                if node.state == "READY"
                else node
            )

    def _request(self, zone: str, found: tpu_v2.QueuedResource) -> Resource | None:
        id_ = found.name.rsplit("/", 1)[-1]
        told = {key: value for spec in found.tpu.node_spec for key, value in spec.node.labels.items()}
        worker = worker_of(self._pool.label, id_, told)
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
        )

    def _node(self, zone: str, found: tpu_v2.Node) -> Resource | None:
        id_ = found.name.rsplit("/", 1)[-1]
        worker = worker_of(self._pool.label, id_, dict(found.labels))
        if worker is None:
            return None
        return Resource(
            kind="node", zone=zone, worker=worker, id=id_, state=found.state.name, uid=f"{zone}/{found.id}"
        )

    def _ended(self, node: str) -> str:
        try:
            told = self._client.get_guest_attributes(
                tpu_v2.GetGuestAttributesRequest(name=node, query_path=f"/{ENDED}"),
                retry=self._again,
                timeout=_CALL_S,
            )
        except exceptions.GoogleAPIError:
            return ""  # nothing was told yet, or it is asked again
        items = [item for each in told.guest_attributes for item in each.query_value.items]
        values = [each.value.strip() for each in items if f"{each.namespace}/{each.key}" == ENDED]
        return next((value for value in values if value), "")


def _connect() -> tpu_v2.TpuClient:
    from google.auth.exceptions import GoogleAuthError

    try:
        return tpu_v2.TpuClient()
    except GoogleAuthError as error:
        problem = str(error).rstrip(". ")
        raise EngineFailed(NAME, f"{problem}; run: gcloud auth application-default login") from None


def _message(kind: Any, value: dict[str, Any]) -> Any:
    """A message of the service from plain values; a field that it does not know is an error."""
    return kind.wrap(ParseDict(value, kind.pb(kind())))


def _outcome(error: Exception) -> Outcome:
    if isinstance(error, exceptions.AlreadyExists):
        return "exists"
    if isinstance(error, exceptions.ResourceExhausted | exceptions.TooManyRequests):
        return "stockout"
    if isinstance(error, exceptions.ClientError) and not isinstance(error, _MAYBE):
        return "refused"
    return "unknown"


def _words(error: Exception) -> str:
    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        error = error.cause
    return " ".join(str(getattr(error, "message", "") or error).split())
