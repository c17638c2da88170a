"""Python's cycle collector waits where many lasting objects are made, and finds all of them later."""

import gc
import weakref

import pytest

from lazy_backend.uncollected import uncollected


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collecting():
    enabled = gc.isenabled()
    gc.enable()
    gc.collect()
    yield
    (gc.enable if enabled else gc.disable)()


def test_what_lasts_is_old_and_garbage_is_found():
    """Objects made meanwhile are in the oldest generation afterwards, and a cycle among them is found later."""
    with uncollected(lasting=True):
        assert not gc.isenabled()
        kept, lost = Cycle(), weakref.ref(Cycle())
        assert lost() is not None
    assert gc.isenabled() and gc.get_freeze_count() == 0
    assert any(x is kept for x in gc.get_objects(generation=2))
    assert not any(x is kept for young in (0, 1) for x in gc.get_objects(generation=young))
    gc.collect()
    assert lost() is None


def test_what_the_script_froze_stays_frozen():
    """A script's own `gc.freeze` is not undone."""
    gc.freeze()
    try:
        with uncollected(lasting=True):
            kept = Cycle()
        assert gc.get_freeze_count() > 0
        assert any(x is kept for x in gc.get_objects(generation=0))
    finally:
        gc.unfreeze()


def test_a_script_that_collects_nothing_goes_on_so():
    """A script that has disabled the collector finds it disabled, after an error as well."""
    gc.disable()
    with pytest.raises(ZeroDivisionError), uncollected(lasting=True):
        1 / 0  # noqa: B018
    assert not gc.isenabled()
