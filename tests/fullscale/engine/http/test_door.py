import threading

from fullscale.engine.http.door import Door


def test_many_pass_at_once():
    door, inside = Door(), threading.Barrier(4)

    def pass_through():
        with door.passing():
            inside.wait(5)

    threads = [threading.Thread(target=pass_through) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside.broken


def test_who_shuts_it_waits_for_those_inside_and_goes_before_those_who_come():
    door, log = Door(), []
    entered, leave, waiting = threading.Event(), threading.Event(), threading.Event()

    def first():
        with door.passing():
            entered.set()
            leave.wait(5)
            log.append("first leaves")

    def shut():
        waiting.set()
        with door.shut():
            log.append("shut")

    def second():
        with door.passing():
            log.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=shut), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(5)
    threads[1].start()
    assert waiting.wait(5)
    while not door._shutting:  # it has asked
        pass
    threads[2].start()
    leave.set()
    for thread in threads:
        thread.join(5)
    assert log == ["first leaves", "shut", "second"]


def test_an_error_inside_leaves_it_open():
    door = Door()
    for way in (door.shut, door.passing, door.shut):
        try:
            with way():
                raise KeyError
        except KeyError:
            pass
    with door.shut():
        pass
