"""Builds `lazy_backend._C` and the OpenCL driver. Everything else is said in pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # importing torch must not load what is about to be built
from torch.utils.cpp_extension import BuildExtension, include_paths, library_paths

CSRC, DRIVERS, UNITS = Path("lazy_backend/csrc"), Path("lazy_backend/drivers"), Path("build/units")

# Our own code is warning-free; torch's headers are system headers, so that -Werror is about ours alone.
FLAGS = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


def units(count: int = 4) -> list[str]:
    """What is compiled: files that include a part of csrc each, frame.cpp first, which reads Python.h in its own way.

    Each file by itself reads torch's headers again, 13 s: eight minutes on two cores, in four parts three, in six as
    long. So a name in an anonymous namespace of csrc is used in one file only.
    """
    files = sorted(CSRC.glob("*.cpp"), key=lambda path: (path.name != "frame.cpp", path))
    UNITS.mkdir(parents=True, exist_ok=True)
    paths = [UNITS / f"unit{i}.cpp" for i in range(count)]
    for i, path in enumerate(paths):
        text = "".join(f'#include "../../{file}"\n' for file in files[i::count])
        if not path.exists() or path.read_text() != text:  # what has not changed is not compiled again
            path.write_text(text)
    return [str(path) for path in paths]


class Build(BuildExtension):
    """Keeps the object files in build/, where an editable install would start from nothing each time."""

    def run(self) -> None:
        """Build what is out of date."""
        self.build_temp = "build/objects"
        super().run()


setup(
    ext_modules=[
        Extension(
            "lazy_backend._C",
            sources=units(),
            depends=sorted(str(path) for path in CSRC.iterdir()),
            extra_compile_args=FLAGS + [flag for path in include_paths() for flag in ("-isystem", path)],
            library_dirs=library_paths(),
            libraries=["c10", "torch_cpu", "torch", "torch_python"],
            extra_link_args=["-Wl,-rpath," + path for path in library_paths()],
            language="c++",
        ),
        # The OpenCL driver is a plain shared library behind the C contract: no torch, no Python.
        Extension(
            "lazy_backend.drivers._opencl",
            sources=["lazy_backend/drivers/opencl_driver.cpp"],
            depends=["lazy_backend/driver/lazy_driver.h", *sorted(str(path) for path in DRIVERS.glob("*.h"))],
            extra_compile_args=FLAGS,
            language="c++",
        ),
    ],
    cmdclass={"build_ext": Build},
)
