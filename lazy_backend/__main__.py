"""``python -m lazy_backend``."""

from lazy_backend.cli import app

app()
