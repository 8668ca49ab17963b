"""The command-line options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from bridge.codec.framing import MessageTypeMap


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """Return the option that ``--help`` explains by ``text`` in ``panel``; ``names`` are those its parameter lacks."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


TypeMap = Annotated[MessageTypeMap, option("Input", "Message type ordinals; b for bodies of RocketMQ 5.0.0 and 5.1.0.")]
Charset = Annotated[str, option("Input", "The writer's charset, such as gbk.", metavar="NAME")]
LONGEST_TIMEOUT_MS: Final = 24 * 60 * 60 * 1_000
TimeoutMs = Annotated[
    float, option("Input", "How long one answer of a broker may take.", metavar="MS", min=1, max=LONGEST_TIMEOUT_MS)
]
