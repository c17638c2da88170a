"""Where OpenCL platforms come from: a folder of .icd files that lists every driver library on this machine.

Wheels carry OpenCL drivers but their .icd files name paths of the machine that built them, and a loader
that is pointed at one folder forgets the others. So we write a folder of our own, with the system's
drivers, NVIDIA's where its device is, Intel's wheel and PoCL's wheel, and name it in OCL_ICD_VENDORS before the
loader starts.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from lazy_backend.driver.cc import cache_folder

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
INTEL_WHEEL = "intel-opencl-rt"
# A container has the library of NVIDIA's driver where the device is, but seldom the .icd file that names it.
NVIDIA_DEVICE = Path("/dev/nvidiactl")
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"


def _wheel_library(package: str, name: str) -> Path | None:
    """A shared library that an installed wheel lists among its files."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == name)
    return next((path for path in found if path.exists()), None)


def _pyopencl() -> Path | None:
    """The folder of the package, found without importing it."""
    spec = find_spec("pyopencl")
    return Path(spec.origin).parent if spec and spec.origin else None


def _pyopencl_libraries(prefix: str) -> list[Path]:
    """Shared libraries that wheels put beside pyopencl (its ICD loader, PoCL)."""
    if not (package := _pyopencl()):
        return []
    return sorted(
        path for folder in (package / ".libs", package.parent / "pyopencl.libs") for path in folder.glob(prefix)
    )


def driver_libraries() -> dict[str, str]:
    """Source -> what its .icd file should say: a path, or a library name that the dynamic loader finds."""
    found = {}
    for icd in sorted(SYSTEM_VENDORS.glob("*.icd")):
        found[f"system {icd.stem}"] = icd.read_text(errors="replace").strip()
    if NVIDIA_DEVICE.exists() and not any("nvidia" in library for library in found.values()):
        found["nvidia driver"] = NVIDIA_LIBRARY  # a loader passes by what it does not find
    if intel := _wheel_library(INTEL_WHEEL, "libintelocl.so"):
        found["intel wheel"] = str(intel)
    if pocl := _pyopencl_libraries("libpocl*.so*"):
        found["pocl wheel"] = str(pocl[0])
    return {source: library for source, library in found.items() if library}


def vendors_folder() -> Path:
    """The folder of .icd files, written once per set of drivers (its name says which, so processes do not race)."""
    libraries = driver_libraries()
    digest = hashlib.sha256(repr(sorted(libraries.items())).encode()).hexdigest()[:12]
    folder = cache_folder() / f"opencl-vendors-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for source, library in libraries.items():
        icd = folder / f"{re.sub('[^a-z0-9]+', '-', source.lower())}.icd"
        if not icd.exists():
            icd.write_text(library + "\n")
    return folder


def set_vendors() -> None:
    """Point the ICD loader at our folder, unless the user has chosen one. Before the loader's first call."""
    os.environ.setdefault("OCL_ICD_VENDORS", f"{vendors_folder()}/")
    if package := _pyopencl():
        # The loader in its wheel is patched to read this, and ends the process where it is not set.
        os.environ.setdefault("PYOPENCL_HOME", str(package))


def loader() -> str | None:
    """The ICD loader: the one that pyopencl uses (so that device ids are shared), else Intel's, else the system's."""
    candidates = [str(path) for path in _pyopencl_libraries("libOpenCL*.so*")]
    if intel := _wheel_library("intel-opencl-rt", "libOpenCL.so.1"):
        candidates.append(str(intel))
    candidates.append("libOpenCL.so.1")
    for candidate in candidates:
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return candidate
    return None
