"""OpenCL C 1.2 and later. No optional feature is used for half types; double needs the device's cl_khr_fp64."""

from __future__ import annotations

from codegen.dialects.base import Language


class OpenCL(Language):
    """The base is OpenCL C already."""

    header = "#pragma OPENCL FP_CONTRACT OFF\n"


LANGUAGE = OpenCL()
