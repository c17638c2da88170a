"""`python -m lazy_backend cache`: what the persistent cache holds; emptying, carrying it to another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lazy_backend import cache, pack

app = typer.Typer(no_args_is_help=True, help="The persistent cache of kernels and plans.")


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False) -> None:
    """Folder, entries and bytes by kind, and the cap."""
    found = cache.summary()
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"{found['folder'] or 'no folder can be written: the cache is off'}")
    for kind in cache.KINDS:
        count, nbytes = found["entries"][kind], found["bytes"][kind]
        typer.echo(f"  {kind[1:]}s {count:>8}  {nbytes / 2**20:>8.1f} MiB")
    typer.echo(f"  cap               {found['cap_bytes'] / 2**20:>8.1f} MiB; the least recently used go first")


@app.command()
def clear() -> None:
    """Removes every entry."""
    typer.echo(f"{cache.prune(0)} entries removed")


@app.command("export")
def export_(path: Path) -> None:
    """Writes all entries to one file, with checksums."""
    blobs = {}
    for _, _, entry in cache.entries():
        content = cache.load(entry.name)
        if content is not None:
            blobs[bytes.fromhex(entry.stem)] = bytes([cache.KINDS.index(entry.suffix)]) + content
    pack.write(path, blobs)
    typer.echo(f"{len(blobs)} entries in {path}")


@app.command("import")
def import_(path: Path) -> None:
    """Adds the entries of an exported file. Kernels are programs: import those of people whom you trust."""
    try:
        exported = dict(pack.Pack(path))
        kinds = {key: cache.KINDS[blob[0]] for key, blob in exported.items()}
    except (pack.BadPack, OSError, IndexError) as error:
        typer.echo(f"nothing was imported: {error}", err=True)
        raise typer.Exit(1) from error
    for key, blob in exported.items():
        cache.store(key.hex() + kinds[key], blob[1:])
    typer.echo(f"{len(exported)} entries imported")
