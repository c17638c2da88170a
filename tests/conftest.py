"""What all tests share: the device under test, the window, a kernel cache of the session's own, the seed."""

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="lazy", help="device under test; cpu checks the tests themselves")
    parser.addoption("--window", default="", help="ops in a window; default: the device's own")


def pytest_configure(config: pytest.Config) -> None:
    """Runs before torch is imported, which reads the environment."""
    if window := config.getoption("--window"):
        os.environ["LAZY_WINDOW"] = window
    if "LAZY_CACHE_DIR" not in os.environ and not config.getoption("numprocesses", None):  # its workers come here too
        config.lazy_cache = os.environ["LAZY_CACHE_DIR"] = tempfile.mkdtemp(prefix="lazy-cache-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(getattr(config, "lazy_cache", ""), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before what -m says leaves tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An OpenCL runtime that was asked for may be absent, or older than the processor. Of `sampled` tests two cases in
    three are slow, the same ones in each run."""
    for item in items:
        if item.get_closest_marker("sampled") and zlib.crc32(item.name.encode()) % 3:
            item.add_marker(pytest.mark.slow)
    if (wanted := os.environ.get("LAZY_OPENCL_PLATFORM")) and config.getoption("--device") == "lazy":
        from lazy_backend.drivers import opencl

        devices, reason, _ = opencl.chosen(opencl.candidates(), wanted)
        for item in () if devices else items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--device")


@pytest.fixture(autouse=True)
def every_window_is_compiled(device: str) -> Iterator[None]:
    """A test's windows never come again, which is no reason to run them op by op."""
    if device == "cpu":
        yield
        return
    from lazy_backend import _C

    _C.compile_all(True)
    yield
    _C.compile_all(False)


@pytest.fixture(autouse=True)
def seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_compiler_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A compiler that fails costs a script speed only (the host takes over); a test must not miss it."""
    yield
    for record in caplog.get_records("call"):
        if "could not be compiled" in record.getMessage() or "could not be traced" in record.getMessage():
            pytest.fail(f"{record.getMessage()}\n{record.exc_text}")


@pytest.fixture
def agrees(device: str) -> Callable[..., None]:
    """``agrees(program)`` asserts that ``program(device)`` gives on the device what it gives on the CPU."""
    import torch
    from torch.utils._pytree import tree_map

    def check(program: Callable[[str], Any], **tolerance: float) -> None:
        def run(where: str) -> Any:
            torch.manual_seed(0)
            return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, program(where))

        torch.testing.assert_close(run(device), run("cpu"), equal_nan=True, **tolerance)

    return check
