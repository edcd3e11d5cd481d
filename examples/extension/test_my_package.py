"""The checks that tacit offers to other packages."""

from my_package.compressor import Relative
from my_package.period import Doubling
from my_package.strategy import RingAverage

from tacit.testing import check_compressor, check_period, check_strategy


def test_strategy() -> None:
    check_strategy(RingAverage(period=Doubling()), is_asynchronous=True)


def test_period() -> None:
    check_period(Doubling(first=2))


def test_compressor() -> None:
    check_compressor(Relative(share=0.3))
