"""Why a session with the broker did not come or broke, in an operator's words."""

from __future__ import annotations

import socket
import ssl
from typing import Any

NO_ANSWER = "timeout: no answer from the broker"
_AUTH_CODES = (
    134,
    135,
)  # MQTT 5 codes to which paho maps 3.1.1's "bad user name or password", "not authorised"


def first_of(errors: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group, however deep."""
    found = errors.exceptions[0]
    return first_of(found) if isinstance(found, BaseExceptionGroup) else found


def reason_of(error: BaseException) -> str:
    """Return what an operator should read about *error*."""
    code = getattr(error, "rc", None)
    if getattr(code, "value", None) in _AUTH_CODES:
        return f"authentication refused by the broker ({code}): check user name and password"
    if isinstance(error.__cause__, Exception):  # what aiomqtt says of a session that broke
        return f"connection lost: {error.__cause__}"
    match error.__context__:  # aiomqtt hides what the socket said of a failed connect, but keeps it
        case ConnectionRefusedError():
            return "connection refused: no broker listens at this address and port"
        case socket.gaierror(strerror=said):
            return f"name resolution failed: {said}"
        case ssl.SSLError() as failed:
            return f"TLS failed: {failed}"
        case TimeoutError():
            return NO_ANSWER
    return str(error) or "connection lost"
