"""Bit-level coding: packed bits, coded indices, cuts by coordinate range, exact sparse sums."""
