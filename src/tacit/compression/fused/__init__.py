"""Compressors' inner loops in one or two passes over memory: Triton kernels on a GPU, torch in cache-sized pieces elsewhere.

Every function takes flat contiguous tensors and waits for nothing: what it decides while running (a check value, an overflow) comes back as a
tensor on the same device.
"""

from tacit.compression.fused.lattice import LatticeCode, lattice_decode, lattice_encode
from tacit.compression.fused.quantization import qsgd_decode, qsgd_encode
from tacit.compression.fused.selection import ef21_select, select_largest

__all__ = [
    "LatticeCode",
    "ef21_select",
    "lattice_decode",
    "lattice_encode",
    "qsgd_decode",
    "qsgd_encode",
    "select_largest",
]
