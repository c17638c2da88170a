"""Kernel templates: one module a family, each turns a fusion group into kernel-level MLIR."""
