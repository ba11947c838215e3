"""What pip calls to build the wheel from a checkout (PEP 517): cargo does all the work."""

import os
import subprocess

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class UnsupportedOperation(Exception):
    """By this name pip knows that there is no such package."""


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    before = set(os.listdir(wheel_directory))
    command = ["cargo", "xtask", "install", "--wheel", wheel_directory]
    try:
        subprocess.run(command, cwd=CHECKOUT, check=True)
    except FileNotFoundError:
        raise SystemExit("rxe is built with Rust: install cargo (https://rustup.rs)")
    except subprocess.CalledProcessError:
        # cargo has said why.
        raise SystemExit("`cargo xtask install` fails")
    (wheel,) = set(os.listdir(wheel_directory)) - before
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation("rxe has no source distribution: use a checkout")
