"""`cloud` behind gRPC, in threads of the test: what the real client sends is parsed and answered by the real messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from fake_tpu.cloud import Cloud, Node, Operation, Refused, Request

_RESULTS = {
    "Node": tpu_v2.Node.pb(tpu_v2.Node()),
    "QueuedResource": tpu_v2.QueuedResource.pb(tpu_v2.QueuedResource()),
    "Empty": empty_pb2.Empty(),
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class FakeTpu:
    """gRPC server in front of `Cloud`.

    Attributes:
        faults: by method name, the faults of its next calls: "lost" takes effect and returns UNAVAILABLE, "down" has
            no effect and returns the same.
        hurries: time advances by one step with each list of nodes.
    """

    def __init__(self) -> None:
        self.cloud = Cloud()
        self.faults: dict[str, list[str]] = {}
        self.calls: list[str] = []
        self.hurries = False
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(4))
        methods = {
            "ListNodes": (tpu_v2.ListNodesRequest, self._list_nodes),
            "GetNode": (tpu_v2.GetNodeRequest, self._get_node),
            "CreateNode": (tpu_v2.CreateNodeRequest, self._create_node),
            "DeleteNode": (tpu_v2.DeleteNodeRequest, self._delete_node),
            "ListQueuedResources": (tpu_v2.ListQueuedResourcesRequest, self._list_requests),
            "CreateQueuedResource": (tpu_v2.CreateQueuedResourceRequest, self._create_request),
            "DeleteQueuedResource": (tpu_v2.DeleteQueuedResourceRequest, self._delete_request),
            "GetGuestAttributes": (tpu_v2.GetGuestAttributesRequest, self._guest_attributes),
        }
        handlers = {
            name: self._handler(name, kind.deserialize, does) for name, (kind, does) in methods.items()
        }
        of_operations = {
            "GetOperation": self._handler(
                "GetOperation", operations_pb2.GetOperationRequest.FromString, self._get_operation
            )
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("google.cloud.tpu.v2.Tpu", handlers),
                grpc.method_handlers_generic_handler("google.longrunning.Operations", of_operations),
            )
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()
        self._server.stop(None).wait()

    def client(self) -> tpu_v2.TpuClient:
        """Return a real client of this server."""
        return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=self._channel))

    def _handler(self, name: str, parse: Callable[[bytes], Any], does: Callable[[Any], Any]) -> Any:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            with self._lock:
                self.calls.append(name)
                fault = self.faults.get(name) and self.faults[name].pop(0)
                if fault == "down":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
                try:
                    result = does(request)
                except Refused as refused:
                    context.abort(_CODES[refused.code], refused.message)
                if fault == "lost":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
                return result

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=parse, response_serializer=_serialize
        )

    def _list_nodes(self, request: Any) -> Any:
        zone = _zone(request.parent)
        if self.hurries:
            self.cloud.tick()
        return tpu_v2.ListNodesResponse(nodes=[_node(n) for n in self.cloud.nodes.values() if n.zone == zone])

    def _get_node(self, request: Any) -> Any:
        zone, id_ = _zone(request.name), request.name.rsplit("/", 1)[-1]
        if (zone, id_) not in self.cloud.nodes:
            raise Refused(5, f"{id_} is not there")
        return _node(self.cloud.nodes[zone, id_])

    def _create_node(self, request: Any) -> Any:
        return _operation(self.cloud.create_node(_zone(request.parent), request.node_id, request.node))

    def _delete_node(self, request: Any) -> Any:
        return _operation(self.cloud.delete_node(_zone(request.name), request.name.rsplit("/", 1)[-1]))

    def _list_requests(self, request: Any) -> Any:
        zone = _zone(request.parent)
        found = [_request(each) for each in self.cloud.requests.values() if each.zone == zone]
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=found)

    def _create_request(self, request: Any) -> Any:
        (spec,) = request.queued_resource.tpu.node_spec
        return _operation(
            self.cloud.create_request(
                _zone(request.parent),
                request.queued_resource_id,
                spec.node,
                node_id=spec.node_id,
                spot="spot" in request.queued_resource,
            )
        )

    def _delete_request(self, request: Any) -> Any:
        zone, id_ = _zone(request.name), request.name.rsplit("/", 1)[-1]
        return _operation(self.cloud.delete_request(zone, id_, force=request.force))

    def _guest_attributes(self, request: Any) -> Any:
        zone, id_ = _zone(request.name), request.name.rsplit("/", 1)[-1]
        node = self.cloud.nodes[zone, id_]
        if not node.ended:
            raise Refused(5, "no guest attributes")
        root, namespace, key = request.query_path.split("/")
        assert root == ""
        entry = tpu_v2.GuestAttributesEntry(namespace=namespace, key=key, value=node.ended)
        value = tpu_v2.GuestAttributesValue(items=[entry])
        return tpu_v2.GetGuestAttributesResponse(guest_attributes=[tpu_v2.GuestAttributes(query_value=value)])

    def _get_operation(self, request: Any) -> Any:
        if request.name not in self.cloud.operations:
            raise Refused(5, "no such operation")
        return _operation(self.cloud.operations[request.name])


def _zone(name: str) -> str:
    return name.split("/")[3]


def _node(node: Node) -> tpu_v2.Node:
    found = tpu_v2.Node(node.spec)
    found.name = f"projects/p/locations/{node.zone}/nodes/{node.id}"
    found.id, found.state = node.number, tpu_v2.Node.State[node.state]
    return found


def _request(request: Request) -> tpu_v2.QueuedResource:
    name = f"projects/p/locations/{request.zone}/queuedResources/{request.id}"
    found = tpu_v2.QueuedResource(name=name)
    found.tpu.node_spec = [{"node_id": request.id, "node": request.spec}]
    found.state.state = tpu_v2.QueuedResourceState.State[request.state]
    if request.state == "FAILED":
        found.state.failed_data = {"error": {"code": request.code, "message": request.problem}}
    return found


def _operation(operation: Operation) -> operations_pb2.Operation:
    answer = operations_pb2.Operation(name=operation.name, done=operation.done)
    if operation.error is not None:
        answer.error.code, answer.error.message = operation.error.code, operation.error.message
    elif operation.done:
        answer.response.Pack(_RESULTS[operation.gives])
    return answer


def _serialize(message: Any) -> bytes:
    data: bytes = (
        message.SerializeToString()
        if hasattr(message, "SerializeToString")
        else type(message).serialize(message)
    )
    return data
