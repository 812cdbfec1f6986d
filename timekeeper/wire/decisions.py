"""``POST /v1/decisions``, by webhook and extender."""

from typing import Annotated

from msgspec import Struct

from timekeeper.core.decisions import MAX_FIGURES, MAX_NAME, MAX_TEXT
from timekeeper.core.values import MAX_AMOUNT
from timekeeper.wire.forms import NotAllowedError, allowed, check_printable, items, like, text, whole
from timekeeper.wire.values import Age, Subject, Version

MAX_DECISIONS = 1_000  # in one post
MAX_COUNT = 2**31

# a word such as ``extender`` or ``refused``
Role = Annotated[str, like("[a-z][a-z-]{0,31}", "it must be 1 to 32 lower-case letters or -")]
_ShortText = Annotated[
    str, text(MAX_NAME, says=f"it must be a printable text of at most {MAX_NAME} characters")
]
_FigureName = Annotated[
    str,
    like(
        "[A-Za-z][A-Za-z0-9]{0,31}",
        "the name of a figure must be 1 to 32 letters or digits, and begin with a letter",
    ),
]
_FIGURE = f"it must be a whole number of 64 bits, or a printable text of at most {MAX_TEXT} characters"
FigureWire = Annotated[
    Annotated[int, whole(MAX_AMOUNT, least=-MAX_AMOUNT)] | Annotated[str, text(MAX_TEXT)], allowed(_FIGURE)
]


class DecisionEntry(Struct, frozen=True, kw_only=True):
    """Equal decisions in succession; see `timekeeper.core.decisions.Decision`. ``owner``: of the pod, as
    ``Kind/name``, "": none or unknown; ``name``: of the pod, "": it has none yet, or the decision is about
    the namespace; ``first_age_ms``: since the first of them, when this is sent."""

    kind: Role
    reason: Annotated[
        str, like("[A-Za-z][A-Za-z0-9]{0,63}", "it must be a word of 1 to 64 letters or digits")
    ]
    namespace: Subject
    owner: _ShortText = ""
    name: _ShortText = ""
    generate_name: _ShortText = ""
    uid: _ShortText = ""
    budget: _ShortText = ""
    first_age_ms: Age
    last_age_ms: Age
    count: Annotated[int, whole(MAX_COUNT, least=1)]
    figures: Annotated[
        dict[_FigureName, FigureWire],
        items(0, MAX_FIGURES, f"it must be an object with at most {MAX_FIGURES} members"),
    ]

    def __post_init__(self) -> None:
        check_printable(self, "owner", "name", "generate_name", "uid", "budget")
        for name, figure in self.figures.items():
            if isinstance(figure, str) and not figure.isprintable():
                raise NotAllowedError(f"figures.{name}", _FIGURE)
        if self.last_age_ms > self.first_age_ms:
            raise NotAllowedError("last_age_ms", "it must not be more than first_age_ms")


class Decisions(Struct, frozen=True):
    """A post. ``source``: the role that decided."""

    version: Version
    source: Role
    decisions: Annotated[list[DecisionEntry], items(1, MAX_DECISIONS)]
