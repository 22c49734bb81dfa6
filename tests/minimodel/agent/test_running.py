import os
import signal
import threading

import pytest

from minimodel.agent.running import stopping_between_steps


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_and_a_second_one_does_not(number):
    heard = []
    outside = signal.signal(number, lambda n, frame: heard.append(n))
    try:
        with stopping_between_steps() as asked:
            assert asked() == 0
            os.kill(os.getpid(), number)
            assert asked() == number
            assert heard == []
            os.kill(os.getpid(), number)
            assert heard == [number]
        os.kill(os.getpid(), number)
        assert heard == [number, number]  # handlers are put back
    finally:
        signal.signal(number, outside)


def test_another_thread_leaves_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with stopping_between_steps() as asked:
            found.extend([signal.getsignal(signal.SIGINT), asked()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, 0]
