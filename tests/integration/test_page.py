"""This page."""

from pathlib import Path

from .page import page


def test_page_is_up_to_date():
    """It names the tests as they are."""
    assert Path("docs/integration.md").read_text() == page()
