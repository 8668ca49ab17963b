"""Files and functions stay small enough to be read in one sitting."""

from statistics import median, quantiles

from tests.support.source_tree import ROOT, functions_of, line_count, name_of, shipped

MAX_FILE = 600
MAX_FUNCTION, P90_FUNCTION, MEDIAN_FUNCTION = 60, 30, 10


def _functions():
    return [function for path in shipped() for function in functions_of(path)]


def test_no_file_is_longer_than_six_hundred_lines():
    paths = [*shipped(), *ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/*.py")]
    too_long = {name_of(path): line_count(path) for path in paths if line_count(path) > MAX_FILE}
    assert too_long == {}


def test_no_function_is_longer_than_sixty_lines():
    too_long = {function.qualified: function.lines for function in _functions() if function.lines > MAX_FUNCTION}
    assert too_long == {}


def test_functions_are_short_in_the_median_and_at_the_ninetieth_percentile():
    lengths = [function.lines for function in _functions()]
    assert median(lengths) <= MEDIAN_FUNCTION
    assert quantiles(lengths, n=10)[-1] <= P90_FUNCTION
