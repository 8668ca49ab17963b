"""Call ``mqtrace`` as a user does: arguments and bytes in, exit code and bytes out."""

import io
import json
import re
import sys

from otel_mqtrace import cli

PUB = "Pub\x011700000000000\x01R\x01G\x01T\x01ID\x01[bold]\x01订单 😀\x01SH\x0126\x015\x010\x01OFF\x01true\x02".encode()
SUB_BEFORE = b"SubBefore\x011700000000000\x01R\x01G\x01REQ\x01ID\x010\x01null\x02"
BAD = b"SubBefore\x01x\x02"


class Terminal:
    """Runs commands in this process."""

    def __init__(self, monkeypatch, capfdbinary):
        self._monkeypatch, self._captured = monkeypatch, capfdbinary

    def __call__(self, *arguments, stdin=b""):
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
            code = cli.main([str(argument) for argument in arguments])
        out, err = self._captured.readouterr()
        return code, out, err.decode()

    def refuses(self, *arguments):
        """Return the one line with which a call is refused, with exit code 2 and no output."""
        code, out, err = self(*arguments)
        assert (code, out, err.count("\n")) == (2, b"", 1)
        assert err.startswith("mqtrace: error: ")
        return err

    def width(self, columns):
        self._monkeypatch.setenv("FORCE_COLOR", "1")
        self._monkeypatch.setenv("COLUMNS", str(columns))
        self._monkeypatch.delenv("NO_COLOR", raising=False)
        self._monkeypatch.setenv("TERM", "xterm")


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def lines_of(out):
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.decode().splitlines()]
