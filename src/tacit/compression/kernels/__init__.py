"""Compressors' inner loops in one or two passes over memory: Triton kernels on a GPU, torch in cache-sized pieces
elsewhere.

One module for each operation, which picks the form: ``selection``, ``quantization``, ``lattice``. Both forms give the
same, to the bit where nothing is drawn and by the same law where something is.
"""
