"""Reviews of seven megabytes, as any client may post them that reaches the port."""

import orjson

from tests.webhook.worlds import admitted, half, plain, review_of
from tests.worlds import Json

BYTES = 7_000_000
_VARIABLES = [{"name": f"V{number}", "value": "x" * 290} for number in range(20)]
_LONG = f"\N{GRINNING FACE}{'x' * (BYTES // 2)}"  # each letter takes four bytes


def floods(path: str) -> dict[str, bytes]:
    """What is posted to this path, by its kind."""
    decoded = 119_000 if path == "/simulate" else 240_000
    pods: dict[str, Json] = {
        "containers without end": admitted(half(), *[{"name": "a"}] * (BYTES // 13)),
        "as many values as are decoded": admitted(half(args=[_LONG]), *[{"name": "a"}] * decoded),
        "one long value": admitted(half(args=["x" * BYTES])),
        "as many parts as are searched": admitted(
            half(), *(plain(f"c{number}", env=_VARIABLES) for number in range(990))
        ),
    }
    reviews = {kind: review_of(raw, dryRun=True) for kind, raw in pods.items()}
    if path == "/simulate":
        return {kind: orjson.dumps({"reviews": [each]}) for kind, each in reviews.items()}
    return {kind: orjson.dumps(each) for kind, each in reviews.items()}
