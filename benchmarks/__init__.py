"""Benchmarks: `python -m benchmarks codec` and `python -m benchmarks kernels`."""
