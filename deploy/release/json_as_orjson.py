"""As much of orjson as `kubectl bursar check` calls, by the standard library: for the command as one file."""

import json
from typing import Any

JSONDecodeError = json.JSONDecodeError


class JSONEncodeError(TypeError):
    """A value that JSON cannot have, or one nested too deeply."""


def loads(text: str | bytes | bytearray | memoryview) -> Any:
    """The value. Raises JSONDecodeError."""
    try:
        return json.loads(bytes(text) if isinstance(text, memoryview) else text)
    except (RecursionError, UnicodeDecodeError) as error:
        raise JSONDecodeError(str(error), "", 0) from error


def dumps(value: Any) -> bytes:
    """The shortest text. Raises JSONEncodeError."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise JSONEncodeError(str(error)) from error
