"""gRPC as Ray uses it: generic methods, token in the metadata, and one private JSON method."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from standin import proto

NODE_INFO = "/ray.rpc.NodeInfoGcsService/"
HEALTH = "/grpc.health.v1.Health/Check"
PRIVATE = "/sparkd.standin/Call"
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.so_reuseport", 0)]
BAD_TOKEN = "InvalidAuthToken: Authentication token is missing or incorrect"
Handler = Callable[[bytes], bytes]


def token() -> str:
    """The token of this process's environment, as Ray's loader looks for it."""
    if value := os.environ.get("RAY_AUTH_TOKEN"):
        return value
    for path in (os.environ.get("RAY_AUTH_TOKEN_PATH"), str(Path("~/.ray/auth_token").expanduser())):
        if path and Path(path).exists():
            with Path(path).open(encoding="utf-8") as file:
                return file.read().strip()
    return ""


def auth_on() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "disabled") == "token"


class _Service(grpc.GenericRpcHandler):
    """Methods by full name; all but health and the raylet's private one ask for the token."""

    def __init__(self, methods: dict[str, Handler], secret: str) -> None:
        self._methods = methods
        self._secret = secret

    def service(self, details: Any) -> Any:
        handler = self._methods.get(details.method)
        if handler is None:
            return None
        given = dict(details.invocation_metadata).get("authorization", "")
        if self._secret and details.method != HEALTH and given != f"Bearer {self._secret}":
            return grpc.unary_unary_rpc_method_handler(_refuse)
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: handler(request))


def _refuse(_request: bytes, context: Any) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, BAD_TOKEN)
    return b""


def serve(address: str, methods: dict[str, Handler]) -> tuple[Any, int]:
    """A running server and its port; OSError when the port is taken."""
    server = grpc.server(ThreadPoolExecutor(max_workers=16), options=OPTIONS)
    secret = token() if auth_on() else ""
    methods = {HEALTH: lambda _request: proto.HEALTH_SERVING, **methods}
    server.add_generic_rpc_handlers((_Service(methods, secret),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    if port == 0:
        raise OSError(f"cannot bind {address}")
    server.start()
    return server, port


def json_method(handle: Callable[[dict[str, Any]], Any]) -> Handler:
    return lambda request: json.dumps(handle(json.loads(request))).encode()


class Client:
    """Calls to one server; raises grpc.RpcError."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS[:1])
        secret = token() if auth_on() else ""
        self._metadata = (("authorization", f"Bearer {secret}"),) if secret else ()

    def raw(self, method: str, request: bytes = b"", timeout: float = 5.0) -> bytes:
        return self._channel.unary_unary(method)(request, timeout=timeout, metadata=self._metadata)

    def call(self, op: str, timeout: float = 5.0, **fields: Any) -> Any:
        """The private method: JSON in, JSON out."""
        return json.loads(self.raw(PRIVATE, json.dumps({"op": op, **fields}).encode(), timeout))

    def close(self) -> None:
        self._channel.close()
