"""The commands of ``python -m lazy_backend``, each imported only when it runs."""

import importlib
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

# name: "module:attribute" of a function with typer parameters, or of a typer.Typer with commands of its own.
COMMANDS: dict[str, str] = {
    "cache": "lazy_backend.cache_command:app",
    "conform": "lazy_backend.conformance.command:conform",
    "coverage": "lazy_backend.reports.coverage_command:coverage",
    "doctor": "lazy_backend.drivers.doctor:doctor",
    "port": "lazy_backend.porting.command:app",
    "profile": "lazy_backend.reports.profile_command:app",
    "sim": "device_sim.command:sim",
}


def _load(name: str) -> typer.Typer:
    module, _, attribute = COMMANDS[name].partition(":")
    found: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        return found
    single = typer.Typer(add_completion=False)
    single.command(name)(found)
    return single


class _Commands(TyperGroup):
    """The group whose commands are ``COMMANDS``."""

    # Any: typer brings a click of its own, whose classes have no public name.
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(_load(cmd_name))
        command.name = cmd_name  # a group has none of its own, and help prints it
        return command


app = typer.Typer(cls=_Commands, add_completion=False, no_args_is_help=True, help="The lazy PyTorch device.")


@app.callback()
def main() -> None:
    """The lazy PyTorch device."""
