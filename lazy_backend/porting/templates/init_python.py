"""Announces __NAME__."""


def driver():
    """Entry point: the driver."""
    from .driver import ChipDriver

    return ChipDriver()
