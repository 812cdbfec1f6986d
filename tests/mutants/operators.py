"""The mutants of a Python file: small changes inside its functions and to its integer constants.

A mutant's name is file, function, operator and ordinal within the function: a change elsewhere keeps it.
"""

import ast
import hashlib
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

CONSTANTS = "<constants>"  # the function of what is outside of functions

_NEGATED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE}
_NEGATED |= {ast.LtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
_BOUNDARY = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_EXTREME = {"min": "max", "max": "min"}

Site = tuple[str, int, Callable[[], object]]  # an operator, a line, and what changes the tree in place


@dataclass(frozen=True, slots=True)
class Function:
    """A function outside of all others, or a constant."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign

    @property
    def first(self) -> int:
        """The line where its code begins, as Python counts: at its first decorator."""
        decorators = [] if isinstance(self.node, ast.Assign) else self.node.decorator_list
        return min(part.lineno for part in [self.node, *decorators])

    @property
    def lines(self) -> range:
        """Those of its body."""
        first = self.node if isinstance(self.node, ast.Assign) else self.node.body[0]
        return range(first.lineno, (self.node.end_lineno or first.lineno) + 1)

    @property
    def digest(self) -> str:
        """Changes with the function, whatever is formatted or moved."""
        return hashlib.sha256(ast.dump(self.node).encode()).hexdigest()[:6]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change; ``line`` counts from the beginning of the function."""

    name: str
    digest: str
    first: int
    line: int

    @property
    def file(self) -> str:
        """Where it is."""
        return self.name.split(":")[0]

    @property
    def function(self) -> str:
        """The function or CONSTANTS."""
        return self.name.split(":")[1]

    @property
    def operator(self) -> str:
        """What is changed there, of a constant its name too."""
        return self.name.split(":")[2]

    @property
    def rank(self) -> float:
        """A place from 0 to 1 that depends on the name alone."""
        return int(hashlib.sha256(self.name.encode()).hexdigest()[:12], 16) / 16**12


def functions(tree: ast.Module | ast.ClassDef, within: str = "") -> Iterator[Function]:
    """Those of a module, its classes' among them, and its constants, in order."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(within + node.name, node)
        elif isinstance(node, ast.Assign) and not within and isinstance(node.targets[0], ast.Name):
            yield Function(CONSTANTS, node)


def mutants(file: str, source: str) -> list[Mutant]:
    """All of this file. None where the changed function could not take the place of the other."""
    return [mutant for mutant, _ in _numbered(file, ast.parse(source))]


def mutated(mutant: Mutant, source: str) -> ast.Module:
    """The file with this change; raises LookupError where the mutant is gone."""
    tree = ast.parse(source)
    for candidate, change in _numbered(mutant.file, tree):
        if candidate.name == mutant.name:
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"{mutant.name} is gone")


def shown(mutant: Mutant, source: str) -> list[str]:
    """The statements of the function that the change touches, as they were and as they are."""
    before = ast.unparse(ast.parse(source)).splitlines()
    after = ast.unparse(mutated(mutant, source)).splitlines()
    while before and after and before[0] == after[0]:
        del before[0], after[0]
    while before and after and before[-1] == after[-1]:
        del before[-1], after[-1]
    return [*(f"- {line.strip()}" for line in before[:3]), *(f"+ {line.strip()}" for line in after[:3])]


def code_of(tree: ast.Module, file: str, function: str, first: int) -> types.CodeType:
    """The compiled code of one function of a module."""
    codes = [compile(tree, file, "exec", dont_inherit=True)]
    for code in codes:
        if (code.co_qualname, code.co_firstlineno) == (function, first):
            return code
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    raise LookupError(f"{file} has no {function} at line {first}")


def _numbered(file: str, tree: ast.Module) -> Iterator[tuple[Mutant, Callable[[], object]]]:
    seen: Counter[str] = Counter()
    for function in functions(tree):
        digest = function.digest
        for operator, line, change in _sites(function):
            key = f"{file}:{function.name}:{operator}"
            seen[key] += 1
            name, first = f"{key}:{seen[key]}", function.first
            yield Mutant(name, digest, first, line - first), change


def _sites(function: Function) -> Iterator[Site]:
    node = function.node
    if isinstance(node, ast.Assign):
        number: Any = next(filter(_is_number, ast.walk(node.value)), None)
        name = ast.unparse(node.targets[0])
        if number is not None and isinstance(node.value, ast.Constant | ast.BinOp):
            yield f"{name} + 1", node.lineno, lambda: setattr(number, "value", number.value + 1)
        return
    returned = ast.unparse(node.returns) if node.returns else ""
    early_ones: dict[str, list[bool | None]] = {"None": [None], "bool": [False, True]}
    for value in early_ones.get(returned, []):
        early = ast.copy_location(ast.Return(ast.Constant(value)), node.body[0])
        yield f"return {value}", node.body[0].lineno, partial(node.body.insert, 0, early)
    for statement in node.body:
        yield from _below(node, statement)


def _below(parent: ast.AST, node: ast.AST) -> Iterator[Site]:
    """What can be changed at a node and below it."""
    if isinstance(node, ast.stmt) and _may_go(node):
        yield "drop", node.lineno, lambda: _replace(parent, node, ast.Pass())
    if isinstance(node, ast.expr):
        yield from ((operator, node.lineno, change) for operator, change in _of_expression(node))
    if isinstance(node, ast.BoolOp):
        for operand in node.values:
            yield "operand", operand.lineno, partial(_drop_operand, parent, node, operand)
    for condition in _conditions(node):
        for operator, value in (("always", True), ("never", False)):
            loops = isinstance(node, ast.While) and value
            if not loops and (value or not isinstance(node, ast.stmt) or not _may_go(node)):
                change = partial(_replace, node, condition, ast.Constant(value))
                yield operator, condition.lineno, change
    # a condition that no other operator negates
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield "not", node.test.lineno, lambda: setattr(node, "test", negated)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "args" if _is_definition(node) else ""):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _below(node, child)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, Callable[[], object]]]:
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                for operator, table in (("comparison", _NEGATED), ("boundary", _BOUNDARY)):
                    if type(op) in table:
                        new = table[type(op)]()
                        yield operator, partial(ops.__setitem__, at, new)
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield "logic", lambda: setattr(node, "op", other)
        case ast.Call(func=ast.Name(id=name) as called) if name in _EXTREME:
            yield "extreme", lambda: setattr(called, "id", _EXTREME[name])
        case ast.Call(args=[ast.expr() as left, ast.expr() as right, *_] as args) if not (
            {type(left), type(right)} & {ast.Starred} or ast.unparse(node.func) in ("isinstance", "getattr")
        ):
            yield "swap", lambda: args.__setitem__(slice(2), [right, left])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.Constant(value=int() as value) if _is_number(node):
            yield "plus", lambda: setattr(node, "value", value + 1)
            yield "minus", lambda: setattr(node, "value", value - 1)


def _may_go(node: ast.stmt) -> bool:
    """Whether what follows can still run without this statement."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Raise():
            return "AssertionError" not in ast.unparse(node)
        case ast.If(orelse=[]):
            return isinstance(node.body[-1], ast.Return | ast.Continue | ast.Raise | ast.Break)
        case _:
            return False


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Those that decide what the node does, but for ``while True``."""
    match node:
        case ast.While(test=ast.Constant()):
            return []
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            return [test]
        case ast.comprehension(ifs=ifs):
            return ifs
        case _:
            return []


def _drop_operand(parent: ast.AST, node: ast.BoolOp, operand: ast.expr) -> None:
    node.values.remove(operand)
    if len(node.values) == 1:
        _replace(parent, node, node.values[0])


def _replace(parent: ast.AST, node: ast.AST, new: ast.AST) -> None:
    ast.copy_location(new, node)
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
