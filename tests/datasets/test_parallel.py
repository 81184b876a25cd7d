import threading

import pytest

from cyctr.datasets.parallel import in_threads


def test_results_come_in_order_and_progress_now_and_then():
    told = []
    assert list(in_threads(lambda i: i * i, 40, lambda *step: told.append(step))) == [i * i for i in range(40)]
    assert told == [(16, 40), (32, 40), (40, 40)]


def test_of_nothing_there_are_no_results():
    assert list(in_threads(lambda i: i, 0)) == []


def fail_at_three(i):
    if i == 3:
        raise ZeroDivisionError
    return i


def give_up(results):
    for result in results:
        if result == 3:
            raise ZeroDivisionError


@pytest.mark.parametrize("function", [fail_at_three, lambda i: i], ids=["in the function", "of whoever takes the results"])
def test_an_exception_stops_what_has_not_begun(function):
    begun, halt = [], threading.Event()

    def work(i):
        begun.append(i)
        if i > 3:
            halt.wait(0.01)  # so that the others cannot all be done by then
        return function(i)

    with pytest.raises(ZeroDivisionError):
        give_up(in_threads(work, 10_000))
    count = len(begun)
    assert count < 9_000
    halt.wait(0.1)
    assert len(begun) == count
