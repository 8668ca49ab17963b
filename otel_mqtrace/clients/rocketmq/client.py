"""Facts of a RocketMQ client and its errors, and futures that complete after ours."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from grpc import RpcError
from rocketmq.grpc_protocol import Code

from otel_mqtrace.clients.state import ActiveTracing, attach_state, known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import text_of
from otel_mqtrace.hooks.scope import BlockScope
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context

    from otel_mqtrace.hooks.tracing import Tracing

active: Final = ActiveTracing()
_SYSTEM: Final = "rocketmq"
_CLUSTERING: Final = "clustering"
"""How every consumer of this client shares the messages of its group; it has no broadcasting."""
_NAMES: Final[dict[int, str]] = {number: name for name, number in Code.items()}


class _State(Protocol):
    def bind(self, tracing: Tracing, /) -> object: ...

    def abandon(self) -> object: ...


_S = TypeVar("_S", bound=_State)


def state_of(client: Any, make: Callable[[ClientInfo], _S]) -> _S | None:
    """Return the client's state, bound to the Tracing in force; ``None`` while nothing is traced."""
    tracing = active.tracing
    return None if tracing is None else _bound(client, make, tracing)


@guarded("rocketmq.client")
def _bound(client: Any, make: Callable[[ClientInfo], _S], tracing: Tracing) -> _S:
    state: _S | None = known_state(client)
    if state is None:
        state = make(_info_of(client))
        attach_state(client, state)
    state.bind(tracing)
    return state


def first_address(endpoints: object) -> str | None:
    """Return the first ``host:port`` of the client's endpoints, or ``None`` when they name none."""
    return str(endpoints).partition(",")[0] or None if endpoints is not None else None


def _info_of(client: Any) -> ClientInfo:
    configuration = client.client_configuration
    group = getattr(client, "consumer_group", None) or getattr(client, "_consumer_group", None)
    info = ClientInfo.named(
        _SYSTEM,
        group_name=group,
        client_id=client.client_id,
        servers=first_address(configuration.rpc_endpoints),
    )
    return replace(
        info, namespace=configuration.namespace or None, consumption_model=None if group is None else _CLUSTERING
    )


def describe_error(exception: BaseException) -> tuple[str, str]:
    """Return type and text of an error: ``TOPIC_NOT_FOUND``, gRPC's ``UNAVAILABLE``, or the class of ``exception``."""
    code = getattr(exception, "code", None)
    if isinstance(code, int) and code in _NAMES:
        name = _NAMES[code]
    elif isinstance(exception, RpcError) and callable(code):
        name = str(code().name)
    else:
        name = type(exception).__qualname__
    return name, text_of(exception)


def observe_call(
    call: Callable[[], Any], observe: Callable[[Any, BaseException | None], object], callback_ctx: Context | None
) -> Any:
    """Call ``call`` and then ``observe(result, exception)``, which must not raise: now, or when a future is done.

    Return the result; in place of a future one that is done as that is, after ``observe``. Its callbacks run in
    ``callback_ctx`` where that is given.
    """
    try:
        result = call()
    except BaseException as exception:
        observe(None, exception)
        raise
    if not isinstance(result, Future):
        observe(result, None)
        return result
    completed: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        exception = CancelledError() if done.cancelled() else done.exception()
        value = None if exception is not None else done.result()
        observe(value, exception)
        scope = None if callback_ctx is None else BlockScope(callback_ctx)
        try:
            if done.cancelled() or not completed.set_running_or_notify_cancel():
                completed.cancel()
            elif exception is not None:
                completed.set_exception(exception)
            else:
                completed.set_result(value)
        finally:
            if scope is not None:
                scope.leave()

    result.add_done_callback(pass_on)
    return completed
