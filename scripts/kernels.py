"""The environment that every kernel inherits, of the runner and of the tests."""

import os


def prepare() -> None:
    """Keep progress bars and the profiler's log out of stored outputs, and pictures inline."""
    os.environ.update(TQDM_DISABLE="1", KINETO_LOG_LEVEL="6")
    os.environ.pop("MPLBACKEND", None)  # it would replace the inline pictures
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # the kernel of this Python, not one that the user registered
