"""Which files of tests can pass a line of a file: those that import it, themselves or through others."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

SHARED = "conftest.py"  # what it imports, all tests below its folder import


class Importers:
    """Of these files of Python, by their paths below a root: which of them import which."""

    def __init__(self, root: Path, files: Iterable[str]) -> None:
        self._modules = {
            file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in files
        }
        self._of: defaultdict[str, set[str]] = defaultdict(set)
        for file in self._modules.values():
            for name in _imported(ast.parse((root / file).read_text())):
                for module in _with_parents(name):
                    self._of[self._modules.get(module, "")].add(file)
            if Path(file).name.startswith("test_"):
                for folder in Path(file).parents:
                    self._of[str(folder / SHARED)].add(file)

    def distances(self, file: str) -> Mapping[str, int]:
        """By importer, over how many imports it reaches this file."""
        distances = {file: 0}
        for nearer in (queue := [file]):
            for importer in self._of[nearer] - distances.keys():
                distances[importer] = distances[nearer] + 1
                queue.append(importer)
        return distances


def _imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _with_parents(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]
