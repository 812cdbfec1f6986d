"""A mistake in something that a user wrote, in a form that can be shown, counted and tested."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule, in a field."""

    rule: str  # rule ID
    path: str  # the field
    got: str  # the value in the field; "": none
    problem: str
    allowed: str  # what would be accepted; "": ``problem`` is the whole sentence
    example: str  # a value that is accepted
    heals: bool = False  # time heals it: the same pod may be admitted later

    def sentence(self) -> str:
        """One line in the order a reader needs: where, what, got, allowed, example."""
        if not self.allowed:
            return self.problem
        got = f", got {self.got}" if self.got else ""
        return f"{self.path}: {self.problem}{got}; allowed: {self.allowed}; for example {self.example}"


def shown(value: object) -> str:
    """A user's value as quoted in messages: at most 60 characters, no line breaks, in double quotes."""
    text = (value if isinstance(value, str) else repr(value))[:61]
    text = "".join(c if c.isprintable() else "?" for c in text)
    return f'"{text[:57]}..."' if len(text) > 60 else f'"{text}"'


def first_of(words: Sequence[str], most: int, between: str = ", ") -> str:
    """The first ``most`` words, and the number of the others."""
    left = len(words) - most
    return between.join((*words[:most], f"{left} more") if left > 0 else words)


# The words of a ResourceQuota's refusal, by which programs that create pods know that they may try again.
TRY_AGAIN = "exceeded quota: "


def message(violations: Sequence[Violation]) -> str:
    """One message of all violations: a sentence, or a numbered list. If time heals them all, it begins with
    `TRY_AGAIN`."""
    begin = TRY_AGAIN if violations and all(violation.heals for violation in violations) else ""
    sentences = [violation.sentence() for violation in violations]
    if len(sentences) == 1:
        return begin + sentences[0]
    listed = "\n".join(f"  {number}. {sentence}" for number, sentence in enumerate(sentences, 1))
    return f"{begin}{len(sentences)} problems:\n{listed}"
