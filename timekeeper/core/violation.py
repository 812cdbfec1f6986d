"""What is wrong with something a user wrote, in a shape that can be shown, counted and tested."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: its id, the field's path, what was given, what is wrong, what is allowed, and an
    example that passes. An empty ``allowed`` says that ``problem`` is the whole sentence."""

    rule: str
    path: str
    got: str
    problem: str
    allowed: str
    example: str

    def sentence(self) -> str:
        """One line in the order a reader needs: where, what, got, allowed, example."""
        if not self.allowed:
            return self.problem
        got = f", got {self.got}" if self.got else ""
        return f"{self.path}: {self.problem}{got}; allowed: {self.allowed}; for example {self.example}"


def shown(value: object) -> str:
    """A user's value as a message may quote it: at most 60 characters, no line breaks, in double quotes."""
    text = (value if isinstance(value, str) else repr(value))[:61]
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"'


def first_of(words: Sequence[str], most: int, between: str = ", ") -> str:
    """The words as a message may list them: the first ``most``, and how many more there are."""
    left = len(words) - most
    return between.join((*words[:most], f"{left} more") if left > 0 else words)


def message(violations: Iterable[Violation]) -> str:
    """All violations in one answer: a sentence where there is one, a numbered list where there are
    several."""
    sentences = [violation.sentence() for violation in violations]
    if len(sentences) == 1:
        return sentences[0]
    listed = "\n".join(f"  {number}. {sentence}" for number, sentence in enumerate(sentences, 1))
    return f"{len(sentences)} things to mend:\n{listed}"
