"""Fake Kubernetes API server, as much as kubectl needs for a Job, its pods and a Secret: HTTP on 127.0.0.1.

It stores objects without validation, and creates the pods of a Job at once, all running.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

_KINDS = {
    "jobs": ("Job", "batch/v1"),
    "pods": ("Pod", "v1"),
    "secrets": ("Secret", "v1"),
    "services": ("Service", "v1"),
}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch", "deletecollection"]
_INDEX = "batch.kubernetes.io/job-completion-index"


class FakeKubernetes:
    """Server whose `objects` are by kind and name; `calls` records the requests."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in _KINDS}
        self.calls: list[str] = []
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                with fake._lock:
                    status, answer = fake.answer(self.command, self.path, json.loads(body) if body else {})
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header(
                    "Content-Type", "text/plain" if isinstance(answer, str) else "application/json"
                )
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if "namespaces" not in path:
            return _discovery(path)
        if path.endswith("/namespaces/sweeps"):
            return 200, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "sweeps"}}
        self.calls.append(f"{method} {path}")
        _, _, rest = path.partition("/namespaces/")
        _, kind, *name = rest.split("/")
        known = self.objects[kind]
        if not name:
            if method == "POST":
                return self._create(kind, body)
            return 200, self._list(kind, query)
        if name[-1] == "log":
            return 200, f"log of {name[0]}\n"
        if method == "PATCH" and kind in ("secrets", "services"):
            known[name[0]] = body
            return 200, body
        if name[0] not in known:
            return 404, _status(404, "NotFound", f'{kind} "{name[0]}" not found')
        if method == "PATCH":
            known[name[0]]["spec"] |= body["spec"]
            self._pods(known[name[0]])
        found = known[name[0]]
        if method == "DELETE":
            del known[name[0]]
            if kind == "jobs":
                self.objects["pods"].clear()
        return 200, found

    def _create(self, kind: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            return 409, _status(409, "AlreadyExists", f'{kind} "{name}" already exists')
        body["metadata"] |= {"uid": f"uid-{name}", "namespace": "sweeps", "resourceVersion": "1"}
        self.objects[kind][name] = body
        self._pods(body)
        return 201, body

    def _pods(self, job: dict[str, Any]) -> None:
        self.objects["pods"] = {
            f"pod-{index}": {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"pod-{index}",
                    "namespace": "sweeps",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": job["spec"]["template"]["metadata"]["labels"] | {_INDEX: str(index)},
                },
                "spec": {"nodeName": f"node-{index}", "containers": [{"name": "worker", "image": "x"}]},
                "status": {"phase": "Running"},
            }
            for index in range(job["spec"]["completions"])
        }

    def _list(self, kind: str, query: dict[str, list[str]]) -> dict[str, Any]:
        pairs = dict(word.split("=") for word in query.get("labelSelector", [""])[0].split(",") if word)
        names = dict(word.split("=") for word in query.get("fieldSelector", [""])[0].split(",") if word)
        items = [
            each
            for each in self.objects[kind].values()
            if pairs.items() <= each["metadata"].get("labels", {}).items()
            and names.get("metadata.name", each["metadata"]["name"]) == each["metadata"]["name"]
        ]
        name, version = _KINDS[kind]
        return {
            "kind": f"{name}List",
            "apiVersion": version,
            "metadata": {"resourceVersion": "1"},
            "items": items,
        }


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _discovery(path: str) -> tuple[int, Any]:
    groups = {"": "v1", "batch": "batch/v1"}
    if path == "/version":
        return 200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return 200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        version = {"groupVersion": "batch/v1", "version": "v1"}
        group = {"name": "batch", "versions": [version], "preferredVersion": version}
        return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    for group, version in groups.items():
        if path == (f"/apis/{version}" if group else f"/api/{version}"):
            resources = [
                {
                    "name": name,
                    "singularName": kind.lower(),
                    "namespaced": True,
                    "kind": kind,
                    "verbs": _VERBS,
                }
                for name, (kind, of) in _KINDS.items()
                if of == version
            ]
            return 200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    if path == "/openapi/v3":
        paths = {}
        for version in groups.values():
            key = f"apis/{version}" if "/" in version else f"api/{version}"
            paths[key] = {"serverRelativeURL": f"/openapi/v3/{key}"}
        return 200, {"paths": paths}
    if path.startswith("/openapi/v3/"):
        return 200, {"openapi": "3.0.0", "info": {"title": "x", "version": "1"}, "paths": _operations()}
    return 404, _status(404, "NotFound", path)


def _operations() -> dict[str, Any]:
    """Return the OpenAPI paths that tell kubectl that the server itself validates fields."""
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    found = {}
    for name, (kind, version) in _KINDS.items():
        group, _, number = version.rpartition("/")
        gvk = {"group": group, "version": number, "kind": kind}
        found[f"/{name}/{{name}}"] = {
            "patch": {"parameters": parameters, "x-kubernetes-group-version-kind": gvk, "responses": {}}
        }
    return found
