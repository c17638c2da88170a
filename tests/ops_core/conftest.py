"""What these tests share: Meta kernels are compared too, and some are this package's once a device is open."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def opened() -> None:
    if torch.lazy.is_available():
        torch.lazy.init()
