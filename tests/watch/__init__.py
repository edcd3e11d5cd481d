"""Tests of tacit.watch."""
