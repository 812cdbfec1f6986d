"""Header blocks of HTTP/2 (RFC 7541), as far as one gRPC call needs them.

There is no dynamic table: our settings give it size 0, so each block stands for itself. Of the static table,
only the entries that an answer can use are here.
"""

from __future__ import annotations

from timekeeper.edge.value import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# RFC 7541, appendix A: the entries, of 61, that an answer to a gRPC call can use. Others decode to an empty
# name.
_STATIC = {
    8: (":status", "200"),
    9: (":status", "204"),
    10: (":status", "206"),
    11: (":status", "304"),
    12: (":status", "400"),
    13: (":status", "404"),
    14: (":status", "500"),
    31: ("content-type", ""),
}
_LAST_STATIC = 61
_EOS = 256
# RFC 7541, appendix B: the length in bits of each symbol's Huffman code, the end-of-string symbol last. The
# code is canonical: ordered by length, then by symbol, each code is the previous one plus one.
_LENGTHS = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28
6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10
13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6
15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28
20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24
22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23
26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27
20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26
30
"""


class MalformedHeaders(ValueError):
    """The header block is malformed; the text says how."""


def encoded(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block of literals without indexing. Names and values are ASCII."""
    return b"".join(b"\0" + _text(name) + _text(text) for name, text in headers)


def decoded(block: bytes) -> list[tuple[str, str]]:
    """The headers of a block, in order. Raises `MalformedHeaders`."""
    reader = _Reader(block)
    headers = []
    while reader.at < len(block):
        if (header := reader.header()) is not None:
            headers.append(header)
    return headers


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return _number(len(raw)) + raw


def _number(number: int) -> bytes:
    """An integer with a 7-bit prefix (RFC 7541, 5.1), its first bit 0: no Huffman."""
    if number < 0x7F:
        return bytes((number,))
    number -= 0x7F
    rest = bytearray((0x7F,))
    while number > 0x7F:
        rest.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes(rest) + bytes((number,))


class _Reader:
    def __init__(self, block: bytes) -> None:
        self._block = block
        self.at = 0

    def header(self) -> tuple[str, str] | None:
        """The next header; None for a change of the table's size, which stays 0."""
        kind = self._peek()
        if kind & 0x80:
            return _static(self.number(0x7F))
        if kind & 0xE0 == 0x20:
            self.number(0x1F)
            return None
        index = self.number(0x3F if kind & 0x40 else 0x0F)
        name = _static(index)[0] if index else self.text()
        return name, self.text()

    def number(self, prefix: int) -> int:
        """An integer (RFC 7541, 5.1) in the ``prefix`` bits of its first byte and in the following bytes."""
        number = self._take(1)[0] & prefix
        if number < prefix:
            return number
        for shift in (0, 7, 14, 21):
            byte = self._take(1)[0]
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise MalformedHeaders("a number is too long")

    def text(self) -> str:
        huffman = self._peek() & 0x80
        raw = self._take(self.number(0x7F))
        return (_plain(raw) if huffman else raw).decode("latin-1")

    def _peek(self) -> int:
        if self.at >= len(self._block):
            raise MalformedHeaders("it is cut off")
        return self._block[self.at]

    def _take(self, count: int) -> bytes:
        taken = self._block[self.at : self.at + count]
        if len(taken) < count:
            raise MalformedHeaders("it is cut off")
        self.at += count
        return taken


def _static(index: int) -> tuple[str, str]:
    if not 1 <= index <= _LAST_STATIC:
        raise MalformedHeaders("it names an entry of a table that was declined")
    return _STATIC.get(index, ("", ""))


def _plain(raw: bytes) -> bytes:
    """The bytes of a Huffman-coded text, which is padded with at most seven ones."""
    symbols = _codes()
    plain = bytearray()
    code = length = 0
    for byte in raw:
        for shift in range(7, -1, -1):
            code, length = code << 1 | byte >> shift & 1, length + 1
            symbol = symbols.get((length, code))
            if symbol == _EOS:
                raise MalformedHeaders("a text holds the end-of-string symbol")
            if symbol is not None:
                plain.append(symbol)
                code = length = 0
    if length > 7 or code != (1 << length) - 1:
        raise MalformedHeaders("a text ends within a symbol")
    return bytes(plain)


def _codes() -> dict[tuple[int, int], int]:
    """Length and code -> symbol. Computed for each use: a call takes milliseconds, and the agent runs for
    months."""
    codes = {}
    code = before = 0
    lengths = map(int, _LENGTHS.split())
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - before
        codes[length, code] = symbol
        code, before = code + 1, length
    return codes
