"""From the core graph to fused kernels: functionalise, schedule, lower to MLIR, print."""
