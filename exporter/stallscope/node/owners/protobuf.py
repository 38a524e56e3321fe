"""Reader of the protobuf wire format, for responses of the kubelet.

A generated reader needs the protobuf runtime, several megabytes in a process of 26 MB. The messages read
here are texts inside messages inside messages.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_SHIFT = 63


class Malformed(ValueError):
    """The bytes are not a valid protobuf message, or not the expected one."""


def fields(message: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and content of each field in order; content is None for numbers, which are not needed here.

    Raises:
        Malformed: the message is truncated or has an unknown wire type.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        content: bytes | None = None
        if not number:
            raise Malformed(f"field number 0 at byte {position}")
        if kind == _LENGTH:
            length, position = _varint(message, position)
            content = message[position : position + length]
            position += length
        elif kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise Malformed(f"field {number} has the unknown wire type {kind}")
        if position > end:
            raise Malformed(f"the message breaks off in field {number}: {position - end} bytes are missing")
        yield number, content


def inner(number: int, content: bytes | None) -> bytes:
    """Return the content of a field that must hold bytes, a text or a message.

    Raises:
        Malformed: it holds a number.
    """
    if content is None:
        raise Malformed(f"field {number} holds a number where a text or message was expected")
    return content


def text(number: int, content: bytes | None) -> str:
    """Return the content of a text field; invalid UTF-8 is replaced.

    Raises:
        Malformed: it holds a number.
    """
    return inner(number, content).decode(errors="replace")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at the position, and the position after it."""
    value = shift = 0
    try:
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > _MOST_SHIFT:
                raise Malformed(f"a number at byte {position} is longer than 64 bits")
    except IndexError:
        raise Malformed(f"the message breaks off in a number at byte {position}") from None
