"""Tests of membership: generations, calls, deadlines, and members on real processes."""
