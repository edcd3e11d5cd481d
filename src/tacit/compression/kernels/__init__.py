"""Inner loops of compressors in one or two passes over memory: Triton on a GPU, torch in cache-sized pieces elsewhere.

One module for each operation chooses the implementation: ``selection``, ``quantization``, ``lattice``. Both
implementations give the same result to the bit; where random numbers are drawn, the same distribution.
"""
