"""Raw JSON values that an API server stores for a tenant, beyond what decoders of JSON like to read."""

import json
import random
from collections.abc import Callable

DEEP = 10_000  # levels: Go's decoder takes no more of an object


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}", inmost: bytes = b"1") -> bytes:
    """A value of this depth."""
    return opening * levels + inmost + closing * levels


def text(raw: bytes) -> bytes:
    """A text of these bytes, as they stand in JSON."""
    return b'"' + raw + b'"'


# by what is odd
VALUES: dict[str, bytes] = {
    "901 levels": nested(901),
    "1,500 brackets": nested(1_500, b"[", b"]"),
    "9,900 levels": nested(9_900),
    "9,800 levels beside a number": b'{"deep":%b,"after":1}' % nested(4_900, b'[{"b":[],"a":', b"}]"),
    "a lone high surrogate": text(rb"\ud800"),
    "a lone low surrogate": text(rb"\uDFFF"),
    "a high surrogate twice, then a low one": text(rb"\uD83D\ud83d\ude00"),
    "a low surrogate after a pair": text(rb"\ud83d\ude00\ude00"),
    "a lone surrogate after a backslash": text(rb"\\\ud800"),
    "no surrogate after a backslash": text(rb"\\ud800"),
    "a lone surrogate in a key": b'{"\\ud800":1}',
    "a byte that is no UTF-8": text(b"a\xffb"),
    "a surrogate in UTF-8": text(b"\xed\xa0\x80"),
    "a letter that is cut off": text(b"\xe2\x82"),
    "a byte that is no UTF-8 in a key": b'{"\xff":1}',
    "NUL": text(rb"a\u0000b"),
    "six bytes a letter": text(rb"\u003c" * 2_000),
    "an endless number": b"1e400",
    "an endless number below 0": b"[-1E+999,2]",
    "5,000 digits": b"1" * 5_000,
    "5,000 digits after the point": b"0." + b"1" * 5_000,
    "a key twice": b'{"a":1,"a":2}',
    "brackets in a text": text(b"[" * 2_000),
    "an escaped quote before brackets": text(rb"\"" + b"[" * 2_000 + rb"\\"),
}


def drawn(random: random.Random, longest: int = 2_000) -> bytes:
    """A value with one or more odd things in it, of about ``longest`` bytes at most where it is not deep."""

    def member() -> bytes:
        return random.choice(tuple(VALUES.values()))

    def key() -> bytes:
        return text(random.choice((rb"\ud800", b"\xff", b"\xed\xa0\x80", rb"\u0000", b"k", b"")))

    shapes: tuple[Callable[[], bytes], ...] = (
        member,
        lambda: b"[%b]" % b",".join(member() for _ in range(random.randrange(4))),
        lambda: b"{%b}" % b",".join(key() + b":" + member() for _ in range(random.randrange(4))),
        lambda: text(
            bytes(b for b in random.randbytes(random.randrange(longest)) if b >= 32 and b not in b'"\\')
        ),
        lambda: json.dumps("".join(chr(random.randrange(0x11_0000)) for _ in range(longest // 12))).encode(),
        lambda: nested(random.randrange(800, DEEP - 100), *random.choice(((b"[", b"]"), (b'{"a":', b"}")))),
    )
    return random.choice(shapes)()
