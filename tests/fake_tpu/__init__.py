"""Fake Cloud TPU service for tests, with stockouts, preemptions and lost answers on request.

    cloud.py    zones, queued resources and nodes; no gRPC, time passes only by `tick`
    server.py   the same behind gRPC on 127.0.0.1, for the real `tpu_v2.TpuClient`

Its state rules are ASSUMPTIONS, from the reference of the API and what people report; none was verified against the real
service:

- A name is taken in its zone until the resource is gone: a second creation answers ALREADY_EXISTS.
- A queued resource waits (WAITING_FOR_RESOURCES), is provisioned when there is capacity, and is ACTIVE when its node is
  READY. Its timeout (`valid_until_duration`) makes it FAILED; FAILED and SUSPENDED stay until they are deleted.
- A spot node that the service takes is PREEMPTED; its queued resource is SUSPENDING and then SUSPENDED. A node of no
  queued resource stays PREEMPTED until it is deleted, and cannot be started.
- A queued resource is deleted with `force`, or where its nodes are gone or it is ACCEPTED, FAILED or SUSPENDED; otherwise
  FAILED_PRECONDITION. With `force` its node goes first. A node of a queued resource is not deleted by itself.
- No capacity for a node without a queued resource: the operation ends with RESOURCE_EXHAUSTED, and no node is left.
- Lists are complete. Operations may be forgotten; then asking for one answers NOT_FOUND.
"""

from fake_tpu.cloud import Cloud, Refused
from fake_tpu.server import FakeTpu

__all__ = ["Cloud", "FakeTpu", "Refused"]
