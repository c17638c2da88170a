"""LAZY_TUNE: measured schedules of products are used, kept, made anew, and never wrong; off means the heuristic."""

import json
import time

import pytest
import torch

import lazy_backend
from codegen import schedule
from codegen.anchors import Factor, Product
from codegen.plan import SlotInfo
from lazy_backend import _C, background, cache, compiler, families, tuning
from lazy_backend.porting import execute, schedules

# The heuristic sums it in two pieces, since it has few results.
M, N, K = 33, 24, 1090


@pytest.fixture(autouse=True)
def alone(device, own, monkeypatch):
    """A cache, families and a background of the test's own; what the background would be asked for is in `asked`."""
    if device == "cpu":
        pytest.skip("the cpu compiles nothing")
    torch.lazy.synchronize()
    monkeypatch.setenv("LAZY_TUNE", "on")
    monkeypatch.setattr(compiler, "_families", families.Families())
    monkeypatch.setattr(background, "_compiler", None)
    monkeypatch.setattr(background, "tuned", [])
    _C.forget_plans(0)


@pytest.fixture
def asked(monkeypatch):
    texts = []
    monkeypatch.setattr(background, "tune_later", lambda device, text: texts.append(text))
    return texts


def factors(m=M, n=N, k=K):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)


def explained(a, b):
    """The kernels of a @ b as MLIR, their names apart, after its result was checked."""
    a, b = a.to("lazy"), b.to("lazy")
    torch.lazy.synchronize()
    found = lazy_backend.explain(lambda: (a @ b).cpu())
    torch.testing.assert_close(found.result, a.cpu() @ b.cpu(), rtol=1e-4, atol=1e-4)
    return [kernel.mlir.partition("(")[2] for window in found.windows for kernel in window.kernels]


def planned(product, tile):
    """The kernels of a product by itself with a schedule."""
    graph, arrays = schedules.set_up(product)
    slots = {slot: SlotInfo(array.nbytes) for slot, array in arrays.items()}
    plan = schedule.plan(graph, slots, compiler.capabilities(0), tiles=lambda _: tile)
    return [plan.kernels[launch.kernel].mlir.partition("(")[2] for launch in plan.launches]


def keep(text, tile):
    cache.store(entry(text), json.dumps({"chosen": tile}).encode())


def entry(text):
    return cache.choice_name(text, _C.device_properties(0))


def test_a_choice_in_the_cache_is_used_to_the_letter(asked):
    a, b = factors()
    by_rule = explained(a, b)
    (text,) = asked
    product = tuning.parsed(text)
    assert product == Product(1, M, N, K, Factor("f32", 1, False, False), Factor("f32", 1, False, False), "f32", False)
    heuristic, *others = product.rivals(compiler.capabilities(0))
    assert len(others) >= 3 and by_rule == planned(product, heuristic) == planned(product, None)
    texts = {tuple(by_rule)}
    for tile in others:
        keep(text, tile)
        found = explained(a, b)
        assert found == planned(product, tile), tile
        texts.add(tuple(found))
    assert len(texts) == 1 + len(others) and asked == [text]


def test_off_asks_for_nothing_and_takes_nothing(asked, monkeypatch):
    a, b = factors()
    by_rule = explained(a, b)
    product = tuning.parsed(asked.pop())
    keep(json.dumps(product), product.rivals(compiler.capabilities(0))[1])
    assert explained(a, b) != by_rule
    monkeypatch.setenv("LAZY_TUNE", "off")
    assert explained(a, b) == by_rule
    monkeypatch.setenv("LAZY_TUNE", "on")
    torch.use_deterministic_algorithms(True)
    try:
        assert explained(a, b) == by_rule, "two runs have to give the same bits"
    finally:
        torch.use_deterministic_algorithms(False)
    assert not asked


def test_a_kept_plan_is_made_anew_once_a_schedule_is_known(asked, monkeypatch):
    compiled = []
    real = compiler.compile_window
    monkeypatch.setattr(compiler, "compile_window", lambda window: compiled.append(1) or real(window))
    a, b = factors(35, 26, 1090)  # of no other test: kernels that are loaded would not be in this cache
    on_device = a.to("lazy"), b.to("lazy")
    torch.lazy.synchronize()

    def compiles():
        compiled.clear()
        _C.forget_plans(0)
        torch.testing.assert_close((on_device[0] @ on_device[1]).cpu(), a @ b, rtol=1e-4, atol=1e-4)
        return len(compiled)

    assert compiles() == 1 and len(asked) == 1
    assert compiles() == 0 and asked == [asked[0]] * 2, "a plan from the cache asks again for what is not known"
    keep(asked[0], tuning.parsed(asked[0]).rivals(compiler.capabilities(0))[1])
    assert compiles() == 1 and len(asked) == 2
    assert compiles() == 0 and len(asked) == 2
    monkeypatch.setenv("LAZY_TUNE", "off")
    assert compiles() == 1, "off has plans of its own"
    monkeypatch.setenv("LAZY_TUNE", "on")
    assert compiles() == 0


@pytest.mark.parametrize("damage", ["bits", "text", "fields", "schedule"])
def test_what_is_no_choice_is_dropped_and_the_heuristic_used(own, asked, damage):
    a, b = factors()
    by_rule = explained(a, b)
    (text,) = asked
    tile = tuning.parsed(text).rivals(compiler.capabilities(0))[1]
    keep(text, tile)
    path = own / entry(text)
    contents = {"text": b"{", "fields": b'{"chosen": ["panel", "x", 3, 128, false, 1, 0]}',
                "schedule": json.dumps({"chosen": tile._replace(splits=10**9)}).encode()}  # fmt: skip
    if damage == "bits":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        cache.store(entry(text), contents[damage])
    assert explained(a, b) == by_rule
    if damage != "schedule":  # which is one by its form, and none of this product's
        assert not path.exists() and asked == [text] * 2


def test_the_background_times_a_product_and_keeps_the_choice(own):
    a, b = factors(45, 64, 800)
    end = time.monotonic() + 300
    while not list(own.glob("*.choice")) and time.monotonic() < end:
        background._compiler = None  # a busy machine leaves a product to the next process
        background.tuned.clear()
        _C.forget_plans(0)
        out = (a.to("lazy") @ b.to("lazy")).cpu()
        while not background.tuned and time.monotonic() < end:
            time.sleep(0.05)
    (line,) = background.tuned
    (path,) = own.glob("*.choice")
    found = json.loads(cache.load(path.name))
    product = tuning.parsed(json.dumps(found["product"]))
    assert (product.m, product.n, product.k) == (45, 64, 800)
    known = product.rivals(compiler.capabilities(0))
    assert tuple(found["heuristic"]) == known[0] and tuple(found["chosen"]) in known
    assert tuple(found["chosen"]) in {tuple(tile) for tile, _ in found["us"]}
    assert tuning.chosen(0, json.dumps(product)) == found["chosen"]
    assert line.startswith("matmul 1 x 45 x 64 x 800 f32: ") and line in lazy_backend.report()
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-4)


def test_small_products_are_not_timed(asked):
    explained(*factors(8, 16, 32))
    assert not asked


def test_windows_go_before_products(monkeypatch):
    monkeypatch.setattr(background, "PATIENCE", 0)
    monkeypatch.setattr(background.Compiler, "_serve", lambda self: None)
    found = background.Compiler()
    found.tune(0, "[1]")
    found.tune(0, "[1]")
    found.add("a", {"nodes": []}, {"rung": 1})
    found.ran("a")
    assert found._next() == ("a", {"nodes": []})
    found._finish("a", 1)
    name, job = found._next()
    assert job == {"device": 0, "product": "[1]"}
    found._finish(name, 0)
    found.tune(0, "[1]")
    assert not found.waiting


def test_times_of_a_busy_machine_are_not_kept(own, monkeypatch):
    def busy(b, product):
        raise schedules.Busy

    monkeypatch.setattr(schedules, "measured", busy)
    product = Product(1, 61, 83, 2048, Factor("f32", 1, False, False), Factor("f32", 1, False, False), "f32", False)
    assert "too busy" in tuning.tune(0, json.dumps(product)) and not list(own.glob("*.choice"))


def test_what_cannot_be_set_up_by_itself_keeps_the_heuristic(own):
    product = Product(1, 1, 50, 7000, Factor("f32", 0, False, False), Factor("f32", 1, False, False), "f32", False)
    assert "nothing was timed" in tuning.tune(0, json.dumps(product))
    assert tuple(tuning.chosen(0, json.dumps(product))) == product.rivals(compiler.capabilities(0))[0]


def test_the_choice_is_the_fastest_of_those_in_turns(monkeypatch):
    """by a clock under which the third schedule takes half of the time"""
    product = Product(1, 61, 83, 2048, Factor("f32", 1, False, False), Factor("f32", 1, False, False), "f32", False)
    rivals = product.rivals(compiler.capabilities(0))
    seen = []

    def clock(b, run, repeat):
        seen.extend([] if run in seen else [run])
        return 5e-4 if seen.index(run) == 2 else 1e-3

    monkeypatch.setattr(execute, "seconds_once", clock)
    monkeypatch.setattr(schedules, "HOPELESS", 3)
    line = tuning.tune(0, json.dumps(product))
    assert tuple(tuning.chosen(0, json.dumps(product))) == rivals[2]
    assert "500.0 us, the heuristic's" in line and "1000.0 us" in line
