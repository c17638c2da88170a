"""Fourier transforms: lengths with a kernel of their own and others, of rows and columns, real and complex."""

import pytest
import torch

import lazy_backend

# Rows are vectors where a square of 4, 8 or 16 divides the length or, of a real one, its half. Else as many rows are as
# have lanes; in 23 and 46 there is a factor that is not small, and those are products, as what has fewer rows is.
# Larger prime factors (509, 1018, 2053) are a convolution.
LENGTHS = [1, 15, 16, 46, 48, 250, 400, 509, 1018, 1024, 2053]
TRANSPOSED = [(37, 20), (16, 250), (19, 360), (2, 9, 44), (64, 1000), (5, 5, 23), (33, 240), (17, 101)]
PRECISION = {torch.complex64: 2e-6, torch.complex128: 1e-14}


def numbers(*shape, dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype)


def close(agrees, program, dtype, size):
    agrees(program, rtol=0, atol=PRECISION[dtype] * size)


@pytest.mark.parametrize(
    "shape, dtype",
    [
        *(((3, n), torch.complex64) for n in LENGTHS), *((shape, torch.complex64) for shape in TRANSPOSED),
        *((shape, torch.complex128) for shape in ((3, 48), (3, 400), (9, 100), (11, 3, 44), (3, 97))),
    ],
    ids=str,
)  # fmt: skip
def test_rows(agrees, shape, dtype):
    z, n = numbers(*shape, dtype=dtype), shape[-1]
    x = z.real.contiguous()

    def program(device):
        a, b = z.to(device), x.to(device)
        spectrum = torch.fft.rfft(b)
        return torch.fft.fft(a), torch.fft.ifft(a), torch.fft.fft(b), spectrum, torch.fft.irfft(spectrum, n), b

    close(agrees, program, dtype, n**0.5 * 4)


def test_the_ends_of_half_a_spectrum_have_no_imaginary_part(agrees):
    z = numbers(4, 33)
    close(agrees, lambda device: torch.fft.irfft(z.to(device), norm="ortho"), z.dtype, 8)


COLUMNS = [
    ((64, 96), (0,)), ((64, 17), (0,)), ((64, 3), (0,)), ((3, 48, 40), (1,)), ((5, 64, 64), (1, 2)),
    ((32, 16, 32), (0, 1, 2)), ((80, 50), (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("shape, dims", COLUMNS, ids=str)
def test_columns(agrees, shape, dims):
    """tiles of neighbouring rows, of which the last one is moved back"""
    z = numbers(*shape)

    def program(device):
        a = z.to(device)
        spectrum = torch.fft.rfftn(a.real, dim=dims)
        back = torch.fft.irfftn(spectrum, s=[shape[d] for d in dims], dim=dims)
        return torch.fft.fftn(a, dim=dims), torch.fft.ifftn(a, dim=dims, norm="forward"), spectrum, back

    close(agrees, program, z.dtype, z.numel() ** 0.5 * 4)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_a_spectrum_lies_as_eager_s_does(device, axes):
    """what is not transformed outside of what is, each in the order in which the input lies"""
    x, z = torch.randn(6, 10, 8).permute(axes), numbers(6, 10, 8).permute(axes)
    for function in (torch.fft.rfft2, torch.fft.rfftn, torch.fft.ihfft, torch.fft.fft, torch.fft.ifftn):
        assert function(x.to(device)).stride() == function(x).stride(), function
    for function in (torch.fft.irfft, torch.fft.irfft2, torch.fft.irfftn, torch.fft.hfft, torch.fft.fft2):
        assert function(z.to(device)).stride() == function(z).stride(), function
    assert torch.fft.rfftn(x.to(device), dim=(2, 0)).stride() == torch.fft.rfftn(x, dim=(2, 0)).stride()


def test_a_transform_of_columns_reads_and_writes_them_as_they_lie(device):
    """no kernel that puts them in order for it: each is a transform or the turns of one"""
    if device == "cpu" or not torch.lazy.get_device_properties().capabilities["is_cpu"]:
        pytest.skip("a kernel of CPUs")
    z = numbers(2, 64, 96).to(device)
    with torch.lazy.window(512):
        windows = lazy_backend.explain(torch.fft.fft2, z).windows
    assert sum(len(window.kernels) for window in windows) == 4


def test_gradients(agrees):
    x, z = torch.randn(4, 64), numbers(4, 64)

    def program(device):
        a, b = x.to(device).requires_grad_(), z.to(device).requires_grad_()
        spectrum = torch.fft.rfft(a).abs().sum() + torch.fft.fft2(b).abs().sum() + torch.fft.irfft(b).square().sum()
        spectrum.backward()
        return a.grad, b.grad

    agrees(program, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [512, 1 << 16])
def test_a_transform_is_one_kernel_and_one_of_its_turns(device, n):
    if device == "cpu" or not torch.lazy.get_device_properties().capabilities["is_cpu"]:
        pytest.skip("a kernel of CPUs")
    z = numbers(4, n).to(device)
    with torch.lazy.window(512):
        windows = lazy_backend.explain(torch.fft.fft, z).windows
    assert sum(len(window.kernels) for window in windows) == 2


def test_what_is_real_in_a_spectrum_is_exactly_so(device):
    """The mean and the middle of a transform of real numbers, whose angle is else -pi as well as pi."""
    x = torch.tensor([0.0, 1.0, 2.0, 5.0, -3.0, 2.0, 1.0, 0.5], device=device)
    for spectrum in (torch.fft.fft(x), torch.fft.rfft(x)):
        assert spectrum.imag[[0, 4]].tolist() == [0.0, 0.0]


def test_a_large_prime_is_the_device_s_and_more_exact_than_a_product(device):
    """a product with its roots has twice the error, and its matrix would be 2053 x 2053"""
    if device == "cpu":
        pytest.skip("the cpu is eager")
    z = numbers(4, 2053)
    exact = torch.fft.fft(z.to(torch.complex128))
    before = torch.lazy.stats()["host_ops"]
    error = (torch.fft.fft(z.to(device)).cpu() - exact).abs().max() / exact.abs().max()
    assert torch.lazy.stats()["host_ops"] == before and error < 6e-7
