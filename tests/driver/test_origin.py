"""Where a call comes from: a launch by its kernel's description, anything else by the caller's Python line."""

import threading
from types import SimpleNamespace

import pytest

from lazy_backend import compiler
from lazy_backend.driver import origin


@pytest.fixture(autouse=True)
def described(monkeypatch):
    texts = {}
    monkeypatch.setattr(compiler, "described", texts)
    monkeypatch.setattr(origin, "lookup", texts.get)
    return texts


def node(op, line):
    return SimpleNamespace(op=op, line=line)


def test_a_launch_is_known_by_its_kernel(described):
    compiler.describe(7, [node("aten.mul.Tensor", "a.py:3 in f"), node("aten.add.Tensor", "a.py:4 in f")])
    with origin.launching(7):
        assert origin.current() == "mul+add (a.py:3 in f)"
    with origin.launching(8):
        assert origin.current() == "", "nothing is known of this kernel"


def test_a_kernel_that_several_lines_use_names_them_and_not_without_end(described):
    for i in (3, 3, 5, 8, 9, 10, 11):
        compiler.describe(7, [node("aten.mul.Tensor", f"a.py:{i} in f")])
    assert described[7] == "mul (a.py:3 in f; a.py:5 in f; a.py:8 in f; a.py:9 in f; and more)"


def test_another_call_is_known_by_the_users_line():
    here = origin.current()
    assert here.startswith(__file__) and here.endswith("test_another_call_is_known_by_the_users_line")
    found = []
    thread = threading.Thread(target=lambda: found.append(origin.current(__file__)))
    thread.start()
    thread.join()
    assert found == [""], "neither a driver's own lines nor Python's are anybody's origin"
