"""A client without instrumentation: a mailbox of letters, connected to ``process`` by the public API."""

from dataclasses import dataclass, field

from otel_mqtrace import ConsumeHook
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.process import Owner

TRACEPARENT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
SENDER = 0xB7AD6B7169203331


def incoming(*headers, topic="orders", offset=7, **fields):
    return IncomingMessage(**{"topic": topic, "partition": 0, "offset": offset, "headers": headers, **fields})


@dataclass
class Letter:
    """One message of the mailbox; what it looks like is its own business."""

    number: int
    headers: tuple = (TRACEPARENT,)

    def incoming(self):
        return incoming(*self.headers, topic="letters", offset=self.number)


@dataclass
class Mailbox:
    """A source of ``process``, and a consumer in automatic mode: a letter is being handled until the next is taken."""

    hook: ConsumeHook
    _open: list = field(default_factory=list)
    _shared: dict = field(default_factory=dict)

    @classmethod
    def of(cls, tracing):
        return cls(ConsumeHook(system="post", group_name="household", tracing=tracing))

    def owner_of(self, message, consumer):
        """Open a span for a letter, or share the one of its bundle; anything else is not ours."""
        if not isinstance(message, Letter):
            return None
        if message.number in self._shared:
            return self._shared[message.number]
        (call,) = self.hook.before([message.incoming()])
        return Owner(call, call.finish)

    def bundle(self, *letters):
        """Hand over letters that came together: one span, ended by the handler of the last one."""
        (call,) = self.hook.before([letter.incoming() for letter in letters], batch=True)
        shared = Owner(call, call.finish)
        self._shared.update((letter.number, shared) for letter in letters)
        return letters

    def take(self, letter):
        """Hand over a letter; the one before it is done."""
        self.done()
        (call,) = self.hook.before([letter.incoming()])
        call.enter()
        self._open.append(call)
        return letter

    def done(self):
        while self._open:
            call = self._open.pop()
            call.leave()
            self.hook.after(call)
