"""`port new`: a driver package that installs, is found, passes stage 0, and whose stubs are the checklist."""

from __future__ import annotations

import enum
import keyword
import re
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


class Language(enum.StrEnum):
    """What a driver can be written in."""

    c = "c"
    python = "python"


# Which template becomes which file.
FILES = {
    Language.c: {"init_c.py": "__init__.py", "driver.c": "driver.c"},
    Language.python: {"init_python.py": "__init__.py", "driver.py": "driver.py"},
}


def scaffold(name: str, level: int, language: Language, folder: Path) -> Path:
    """Write the package into folder/name. Raises ValueError for a bad name, FileExistsError where one is there."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is no Python identifier")
    root = folder / name
    (root / name).mkdir(parents=True)
    (root / "pyproject.toml").write_text(fill("pyproject.toml", name, level))
    for template, file in FILES[language].items():
        (root / name / file).write_text(fill(template, name, level))
    return root


def fill(template: str, name: str, level: int) -> str:
    """A template's text: a line marked @23 is for levels 2 and 3."""
    lines = (TEMPLATES / f"{template}.in").read_text().splitlines()
    kept = [line for line in lines if not (mark := re.search(r"@(\d+)", line)) or str(level) in mark[1]]
    text = re.sub(r" *(?:/\*@\d+\*/|# @\d+| @\d+(?= \*/|$))", "", "\n".join(kept), flags=re.M)
    text = re.sub(r"\n{3,}(?=    # \[)", "\n\n", text)
    values = {"__NAME__": name, "__LEVEL__": str(level), "__LANGUAGE__": "" if level == 1 else "c"}
    for key, value in values.items():
        text = text.replace(key, value)
    return text + "\n"
