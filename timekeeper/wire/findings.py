"""What a role finds wrong, as it posts it and as ``GET /v1/findings`` has it."""

from typing import Annotated

from msgspec import Struct

from timekeeper.core.cluster_map import MAX_NAME
from timekeeper.core.findings import MAX_FIGURE, MAX_SENTENCE, MOST_FINDINGS, FindingLevel
from timekeeper.wire import values
from timekeeper.wire.forms import NotAllowedError, check_printable, items, text, whole

_Word = Annotated[str, text(MAX_NAME, 1)]
_AT_MOST = f"it must be a list of at most {MOST_FINDINGS}"
_Figures = Annotated[
    dict[_Word, int | Annotated[str, text(MAX_FIGURE)]], items(0, 20, "it must have at most 20 figures")
]


class PostedFinding(Struct, frozen=True):
    """`code`: of the role's catalogue; `about`: what was looked at; `figures`: by name, times in
    milliseconds; `sentence`: the same for people."""

    code: _Word
    level: FindingLevel
    about: _Word
    figures: _Figures
    sentence: Annotated[str, text(MAX_SENTENCE)]

    def __post_init__(self) -> None:
        check_printable(self, "code", "about", "figures", "sentence")
        if not "".join(map(str, self.figures.values())).isprintable():
            raise NotAllowedError("figures")


class PostedFindings(Struct, frozen=True):
    """``more``: by code, how many findings were left out."""

    findings: Annotated[list[PostedFinding], items(0, MOST_FINDINGS, _AT_MOST)]
    more: Annotated[dict[_Word, Annotated[int, whole(values.MAX_FIGURE)]], items(0, MOST_FINDINGS, _AT_MOST)]

    def __post_init__(self) -> None:
        check_printable(self, "more")
