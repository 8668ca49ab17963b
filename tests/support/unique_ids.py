"""Take RocketMQ's unique message ids apart."""

from ipaddress import ip_address
from typing import NamedTuple


class UniqueId(NamedTuple):
    address: str
    pid: int
    origin: int
    ms_in_month: int
    counter: int


def read_unique_id(text):
    assert len(text) in {32, 56}
    raw = bytes.fromhex(text)
    places = zip((-12, -10, -6, -2), (-10, -6, -2, None), strict=True)
    return UniqueId(str(ip_address(raw[:-12])), *(int.from_bytes(raw[begin:end], "big") for begin, end in places))
