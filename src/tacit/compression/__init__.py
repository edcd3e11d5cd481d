"""Compressors: a flat vector in, a message out, and back. No worker and no network."""

from tacit.compression.chain import Chain
from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.compression.dense import BFloat16, BFloat16Vector, Dense, DenseVector
from tacit.compression.lattice import Lattice, LatticeVector
from tacit.compression.layerwise import Layerwise, LayerwiseVector
from tacit.compression.low_rank import LowRank, LowRankVector
from tacit.compression.quantized import QSGD, QuantizedVector, Sign, SignVector
from tacit.compression.sparse import BlockTopK, RandomK, Selector, SparseVector, TopK

__all__ = [
    "QSGD",
    "BFloat16",
    "BFloat16Vector",
    "BlockTopK",
    "Chain",
    "Compressed",
    "Compressor",
    "Dense",
    "DenseVector",
    "Lattice",
    "LatticeVector",
    "Layerwise",
    "LayerwiseVector",
    "LowRank",
    "LowRankVector",
    "Memory",
    "QuantizedVector",
    "RandomK",
    "Selector",
    "Sign",
    "SignVector",
    "SparseVector",
    "TopK",
]
