"""Random number generators."""

import copy
import pickle

import pytest
import torch

from tests.integration.process import run_python


def draw() -> torch.Tensor:
    return torch.rand(8, device="lazy").cpu()


def test_manual_seed():
    """torch.manual_seed, torch.lazy.manual_seed and manual_seed_all seed the device."""
    for reseed in (torch.manual_seed, torch.lazy.manual_seed, torch.lazy.manual_seed_all):
        reseed(5)
        first = draw()
        assert not torch.equal(first, draw())
        reseed(5)
        assert torch.equal(first, draw())
        assert torch.lazy.initial_seed() == 5


def test_manual_seed_opens_no_driver():
    """torch.manual_seed in a script of the CPU's opens no driver, and counts for the device if one is opened later."""
    program = """
import sys, torch
from lazy_backend import _C
torch.manual_seed(-5)
print(_C.driver_opened(), torch.lazy.initial_seed() == torch.initial_seed() == 2**64 - 5, _C.driver_opened())
first = torch.rand(8, device="lazy").cpu()
torch.manual_seed(-5)
print(torch.equal(first, torch.rand(8, device="lazy").cpu()))
"""
    assert run_python(program, {}).split() == ["False", "True", "True", "True"]


def test_state_round_trip():
    """get_rng_state and set_rng_state resume a sequence; so do the _all forms."""
    draw()
    state, states = torch.lazy.get_rng_state(), torch.lazy.get_rng_state_all()
    first = draw()
    torch.lazy.set_rng_state(state)
    assert torch.equal(first, draw())
    torch.lazy.set_rng_state_all(states)
    assert torch.equal(first, draw())


def test_generator_object():
    """A Generator of the device: seeding, state, clone, offset, in factories and in-place ops."""
    generator = torch.Generator("lazy").manual_seed(3)
    first = torch.randn(5, device="lazy", generator=generator).cpu()
    clone = generator.clone_state()
    second = torch.empty(5, device="lazy").normal_(generator=generator).cpu()
    assert torch.equal(second, torch.empty(5, device="lazy").normal_(generator=clone).cpu())
    assert torch.equal(first, torch.randn(5, device="lazy", generator=generator.manual_seed(3)).cpu())
    generator.set_offset(0)
    assert generator.get_offset() == 0
    assert torch.equal(first, torch.randn(5, device="lazy", generator=generator).cpu())


def test_bad_state():
    """A state of the wrong size or type raises."""
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.lazy.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(TypeError):
        torch.lazy.set_rng_state(torch.zeros(16))


def test_a_state_loaded_onto_the_device_is_taken():
    """A checkpoint's states that torch.load(map_location="lazy") put on the device are accepted."""
    states = torch.lazy.get_rng_state_all()
    first = draw()
    torch.lazy.set_rng_state_all([state.to("lazy") for state in states])
    assert torch.equal(first, draw())


def test_generators_are_copied_and_pickled():
    """copy.deepcopy, pickle and graphsafe states of a Generator: copies go on alike, shared states together."""
    generator = torch.Generator("lazy").manual_seed(3)
    torch.rand(4, device="lazy", generator=generator)
    twins = copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator.clone_state()
    expected = torch.rand(5, device="lazy", generator=generator).cpu()
    for twin in twins:
        assert twin.device == generator.device and twin.initial_seed() == 3
        assert torch.equal(torch.rand(5, device="lazy", generator=twin).cpu(), expected)
    partner = torch.Generator("lazy")
    partner.graphsafe_set_state(generator.graphsafe_get_state())
    ours, theirs = (torch.rand(5, device="lazy", generator=g).cpu() for g in (generator, partner))
    assert not torch.equal(ours, theirs) and torch.equal(partner.get_state(), generator.get_state())
    assert generator.seed() == generator.initial_seed() == partner.initial_seed()


def test_cpu_generator_is_refused():
    """A CPU generator for a lazy tensor raises, as in eager."""
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(3, device="lazy", generator=torch.Generator())


def test_fork_rng():
    """torch.random.fork_rng restores the device's generator."""
    torch.manual_seed(1)
    expected = draw()
    torch.manual_seed(1)
    with torch.random.fork_rng(device_type="lazy"):
        draw()
    assert torch.equal(expected, draw())


def test_numbers_do_not_depend_on_the_window():
    """The same seed gives the same numbers under any window."""
    drawn = []
    for length in (1, 8, 512):
        with torch.lazy.window(length):
            torch.manual_seed(2)
            drawn.append(torch.cat([torch.rand(7, device="lazy") + torch.randn(7, device="lazy") for _ in range(5)]))
    assert torch.equal(drawn[0].cpu(), drawn[1].cpu()) and torch.equal(drawn[0].cpu(), drawn[2].cpu())
