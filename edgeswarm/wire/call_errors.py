"""Errors of gRPC calls as a person reads them, and an EdgeswarmError's way from a servicer to its caller.

A servicer raises EdgeswarmError; the server's interceptor ends the call with the error's JSON in the trailing metadata;
`error_of_call` builds the same error again on the other side. What is no gRPC sends the same JSON: `pack_error`.
"""

from __future__ import annotations

import functools
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar, cast

import grpc

from ..errors import EdgeswarmError, ErrorCode

METADATA_KEY = "edgeswarm-error-bin"
METADATA_LIMIT_BYTES = 128 * 1024  # gRPC's own limit of 8 KiB drops the whole call's answer

_DETAIL_LIMIT = 8000  # characters of a traceback's end, and of a message
_BROKEN_OFF = "Handshake read failed (Endpoint closing)"  # by ourselves, at the end of our patience
_TRUST_WORDS = ("certificate", "handshake", "hostname verification", "peer name", "alert")

_log = logging.getLogger(__name__)
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def error_of_call(error: grpc.RpcError, *, device: str, doing: str = "") -> EdgeswarmError:
    """What a failed call means to a person.

    device: the node id or address that was called. doing: what was tried ("start the worker"), for the message.
    """
    tried = f" (tried to {doing})" if doing else ""
    sent = _sent_error(error)
    if sent is not None:
        return sent
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and _BROKEN_OFF in details:
        return EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{device} took the connection and was not done with the handshake in time{tried}.",
            "Check the network and what else keeps that device busy.",
            detail=details,
        )
    if code is grpc.StatusCode.UNAVAILABLE and any(word in details.lower() for word in _TRUST_WORDS):
        return EdgeswarmError(
            ErrorCode.TRUST,
            f"No trusted connection to {device}{tried}: one side doesn't accept the other's certificate.",
            "Check that both belong to this cluster (`edgeswarm-agent join`), that the address is that device's, "
            "and that both clocks are right.",
            detail=details,
        )
    if code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details and "Socket closed" in details:
        # All that a client sees of a server that doesn't accept its certificate; a dying server looks the same.
        return EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{device} closed the connection before the first call{tried}.",
            "Check that this machine and that device have joined the same cluster, and that both clocks are right.",
            detail=details,
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        return EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{device} can't be reached{tried}.",
            "Check that it is on and on this network, that no firewall there holds up its ports, and, of a device, that "
            "`edgeswarm-agent run` runs there.",
            detail=details,
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return EdgeswarmError(
            ErrorCode.DEVICE_UNREACHABLE,
            f"{device} did not answer in time{tried}.",
            "Check the network and what else keeps that device busy.",
            detail=details,
        )
    if code is grpc.StatusCode.CANCELLED:
        return EdgeswarmError(
            ErrorCode.LINK_BROKEN,
            f"The call to {device} was ended before its answer{tried}.",
            "Run the command again; the agent's log there says more.",
            detail=details,
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return EdgeswarmError(
            ErrorCode.VERSION_DIFFERS,
            f"{device} doesn't know this call{tried}: it runs another version of edgeswarm.",
            "Install the same version on all devices.",
            detail=details,
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return EdgeswarmError(
            ErrorCode.TRUST, f"{device} refused the call{tried}: {details}", "Call it with an identity of its cluster."
        )
    return EdgeswarmError(
        ErrorCode.INTERNAL,
        f"The call to {device} failed{tried}: {code.name}: {details}",
        "Look at the agent's log there, and report it with that.",
    )


def _sent_error(error: grpc.RpcError) -> EdgeswarmError | None:
    """The EdgeswarmError that the other side's servicer raised, if it did."""
    # Stubs type this as what one kind of RpcError returns; all kinds give pairs, some give None.
    metadata = cast("tuple[tuple[str, str | bytes], ...] | None", error.trailing_metadata())
    for key, value in metadata or ():
        if key == METADATA_KEY:
            return unpack_error(value)
    return None


def pack_error(error: EdgeswarmError) -> bytes:
    """The error as JSON, its texts cut where they are longer than anybody reads."""
    trimmed = EdgeswarmError(
        error.code, error.message[:_DETAIL_LIMIT], error.remedy[:_DETAIL_LIMIT], detail=error.detail[-_DETAIL_LIMIT:]
    )
    return json.dumps(trimmed.to_json(), ensure_ascii=False).encode(errors="replace")


def unpack_error(data: str | bytes) -> EdgeswarmError | None:
    """What `pack_error` made; None for anything else."""
    try:
        document = json.loads(data)
        return EdgeswarmError.from_json({str(name): str(text) for name, text in document.items()})
    except (ValueError, AttributeError):
        _log.warning("an error of another version arrived and can't be read: %r", data[:200])
    return None


def defect(error: Exception, doing: str) -> EdgeswarmError:
    """For whoever called, of what nobody expected here. Logs it."""
    _log.error("%s failed", doing, exc_info=error)
    return EdgeswarmError(
        ErrorCode.INTERNAL,
        f"{doing} failed: {type(error).__name__}: {error}",
        "This is a defect of edgeswarm; please report it with the details.",
        detail="".join(traceback.format_exception(error)),
    )


def _abort(context: grpc.ServicerContext, error: EdgeswarmError) -> NoReturn:
    context.set_trailing_metadata(((METADATA_KEY, pack_error(error)),))
    status = {
        ErrorCode.TRUST: grpc.StatusCode.PERMISSION_DENIED,
        ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    }.get(error.code, grpc.StatusCode.FAILED_PRECONDITION)
    context.abort(status, error.message[:500])


def _fail(context: grpc.ServicerContext, error: Exception, method: str) -> NoReturn:
    """End the call that raised `error` so that its caller learns why."""
    if isinstance(error, EdgeswarmError):
        _abort(context, error)
    if isinstance(error, grpc.RpcError) or (type(error) is Exception and not error.args):
        # The caller is gone (gRPC raises in the request iterator), or the servicer called context.abort itself.
        raise error
    _abort(context, defect(error, method))


class ErrorInterceptor(grpc.ServerInterceptor):
    """Around every method of a server: what it raises reaches the caller as an EdgeswarmError."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[_Request, _Response] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        for kind, wrap, make in (
            ("unary_unary", _wrap_single, grpc.unary_unary_rpc_method_handler),
            ("stream_unary", _wrap_single, grpc.stream_unary_rpc_method_handler),
            ("unary_stream", _wrap_stream, grpc.unary_stream_rpc_method_handler),
            ("stream_stream", _wrap_stream, grpc.stream_stream_rpc_method_handler),
        ):
            behaviour = getattr(handler, kind)
            if behaviour is not None:
                wrapped = wrap(behaviour, method)
                return make(wrapped, handler.request_deserializer, handler.response_serializer)
        raise AssertionError(f"{method} has no behaviour")


def _wrap_single(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    @functools.wraps(behaviour)
    def wrapped(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behaviour(request, context)
        except Exception as error:
            _fail(context, error, method)

    return wrapped


def _wrap_stream(behaviour: Callable[..., Iterator[Any]], method: str) -> Callable[..., Iterator[Any]]:
    @functools.wraps(behaviour)
    def wrapped(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from behaviour(request, context)
        except Exception as error:
            _fail(context, error, method)

    return wrapped
