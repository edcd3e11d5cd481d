"""Parsers for times, rates, seeds and learning rates on the command line: ``0.1ms``, ``1Gbit/s``, ``0,3,7``."""

from __future__ import annotations

from tacit.registry.units import bytes_per_second, seconds

__all__ = ["assignment", "bytes_per_second", "hosts", "rates", "seconds", "seeds"]


def seeds(text: str) -> list[int]:
    """Return the seeds of ``3`` (0, 1 and 2), or of the list ``4,7,9``."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"seeds={text!r} must be a number of seeds (3) or a list of seeds (4,7,9).") from None
    return list(range(numbers[0])) if len(numbers) == 1 and "," not in text else numbers


def rates(text: str) -> list[float]:
    """Return the learning rates of ``0.1`` or of the list ``0.1,0.3``."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"lr={text!r} must be a learning rate (0.1) or a list of rates (0.1,0.3).") from None


def hosts(text: str) -> int | list[int]:
    """Return the number of hosts of ``2``, or the list of ``0,0,1,1``."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
        return numbers if "," in text else numbers[0]
    except (ValueError, IndexError):
        raise ValueError(f"hosts={text!r} must be a number of hosts (2) or each rank's host (0,0,1,1).") from None


def assignment(text: str) -> tuple[str, float]:
    """Return the rank and the factor of ``3=0.33``."""
    rank, sign, factor = text.partition("=")
    try:
        if not sign:
            raise ValueError
        return str(int(rank)), float(factor)
    except ValueError:
        raise ValueError(f"speed={text!r} must be RANK=FACTOR; 3=0.33 runs worker 3 at a third of the speed.") from None
