"""One thread: problems this small are slower on two, and other processes want the cores."""

from tests.fullscale.agent.conftest import single_threaded

__all__ = ["single_threaded"]
