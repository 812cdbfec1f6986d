"""The text of a budget entry as YAML nodes, which know their lines, and the values in them.

Scalars are read as text (PyYAML's composer), so 0.1 is exactly a tenth and ``on`` is not True. Anchors and
aliases are refused: budgets do not need them, and they can be made to expand without limit.
"""

import re
from contextlib import suppress
from typing import Any

import yaml

from timekeeper.core.budgets import scalars
from timekeeper.core.budgets.mistakes import BadEntryError, Mistakes

LONGEST_ENTRY = 16 * 1024  # characters; an entry is a dozen lines
DEEPEST = 4  # levels of nesting; the deepest value of an entry is a rule's mode
_LIBYAML: Any = getattr(yaml, "CSafeLoader", None)  # takes a tenth of the time; None: it is not installed
# of these libyaml reads some otherwise than PyYAML: tabs, `? `, block scalars, line breaks beyond ASCII
_ODD = re.compile(r"[^\n -~]|[!%&*>?@`|\\]|---|\.\.\.")


def fields_of(text: str) -> dict[str, yaml.Node]:
    """An entry's mapping as field -> node. Raises BadEntryError for duplicate fields, aliases and several
    documents."""
    if len(text) > LONGEST_ENTRY:
        raise BadEntryError(1, "", "too long", f"at most {LONGEST_ENTRY} characters")
    root = _compose(text)
    if root is None:
        return {}
    return pairs_of(root, "")


def _compose(text: str) -> yaml.Node | None:
    """By libyaml where it is sure to say the same: it takes no text that is odd, and none with a mistake."""
    if _LIBYAML is not None and not _ODD.search(text):
        with suppress(yaml.YAMLError, BadEntryError):
            _check_shape(text, _LIBYAML)
            return yaml.compose(text, Loader=_LIBYAML)
    try:
        _check_shape(text, yaml.SafeLoader)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadEntryError(line, "", f"not YAML: {error.problem}", "one mapping of fields") from error
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise BadEntryError(1, "", f"not YAML: {problem}", "one mapping of fields") from error


def _check_shape(text: str, loader: Any) -> None:
    """Refuses anchors, aliases and deep nesting while the text is a stream of events, before it can use
    memory. Raises BadEntryError; with libyaml also at an empty value, of which it may give another line."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 1
        if getattr(event, "anchor", None):
            raise BadEntryError(line, "", "anchors and aliases are not allowed", "plain fields")
        if depth > DEEPEST:
            raise BadEntryError(line, "", "nested too deeply", f"at most {DEEPEST} levels")
        if loader is _LIBYAML and isinstance(event, yaml.ScalarEvent) and not event.value:
            raise BadEntryError(line, "", "empty", "a value")


def pairs_of(node: yaml.Node, field: str) -> dict[str, yaml.Node]:
    """A mapping as name -> node; ``field``: where it stands. Raises BadEntryError."""
    if not isinstance(node, yaml.MappingNode):
        raise BadEntryError(line_of(node), field, "not a mapping", "fields as name: value")
    pairs: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        if not name or name in pairs:
            problem = f"the field {name} appears twice" if name else "a field without a name"
            raise BadEntryError(line_of(key), field or name, problem, "each field once")
        pairs[name] = value
    return pairs


def line_of(node: yaml.Node) -> int:
    """The node's line within the entry, from 1."""
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node, field: str) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise BadEntryError(line_of(node), field, "not a single value", "one value")
    return str(node.value)


def values_of(node: yaml.Node, field: str, reader: scalars.Reader, mistakes: Mistakes) -> tuple[Any, ...]:
    """A list's values, each as the reader reads its text; bad ones are noted. Raises BadEntryError for any
    other node."""
    if not isinstance(node, yaml.SequenceNode):
        raise BadEntryError(line_of(node), field, "not a list", "a list of values")
    return tuple(
        mistakes.tried(value_of, each, f"{field}[{place}]", reader) for place, each in enumerate(node.value)
    )


def value_of(node: yaml.Node, field: str, reader: scalars.Reader) -> Any:
    """A single value, as the reader reads its text. Raises BadEntryError."""
    text = _scalar(node, field)
    try:
        return reader(text)
    except scalars.BadValueError as bad:
        raise BadEntryError(line_of(node), field, f'"{text[:60]}" is not a valid value', str(bad)) from bad
