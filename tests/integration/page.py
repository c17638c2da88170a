"""The page docs/integration.md, from the docstrings of the tests beside this file."""

import ast
from pathlib import Path

from tests.integration.rows import ROWS

HEAD = """# Integration with PyTorch

Every item is shown by the test named beside it. Made from the tests' docstrings by `python -m tests.integration.page`.
"""


def first_line(node: ast.Module | ast.FunctionDef, where: str) -> str:
    """The docstring's first line. Raises where there is none."""
    text = ast.get_docstring(node)
    if not text:
        raise ValueError(f"{where} has no docstring")
    return text.splitlines()[0].rstrip(".")


FOLDER = Path(__file__).parent


def checklist() -> str:
    """The rows of what torch expects, each with its tests. Raises ValueError where a test does not exist."""
    lines = ["## What torch expects of an accelerator outside its tree", "", "| row | shown by |", "| --- | --- |"]
    for row, tests in ROWS.items():
        for test in tests:
            file, name = test.split("::")
            if f"def {name}(" not in (FOLDER / file).read_text():
                raise ValueError(f"{row}: there is no test {test}")
        lines.append(f"| {row} | {', '.join(f'`{test}`' for test in tests)} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD, checklist()]
    for path in sorted(FOLDER.glob("test_*.py")):
        module = ast.parse(path.read_text())
        tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        rows = [f"| {first_line(test, test.name)} | `{path.name}::{test.name}` |" for test in tests]
        parts.append(
            "\n".join([f"## {first_line(module, path.name)}", "", "| item | test |", "| --- | --- |", *rows, ""])
        )
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
