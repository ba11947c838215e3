"""Run verbs programs over rxe, a RoCEv2 stack in user space.

``argv`` gives the command line that runs a program, ``env`` the variables that do the same. Both take the
options of ``rxe run`` (``rxe run --help``) by their names: ``no_shm=True``, ``ack_timeout=17``.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Dict, List, Optional, Sequence, Union

__all__ = ["Error", "Option", "argv", "command", "env"]

_Path = Union[str, "os.PathLike[str]"]

#: The value of an option. ``True`` gives an option that has no value; ``False`` and ``None`` give none.
Option = Union[None, bool, int, str, "os.PathLike[str]"]


class Error(RuntimeError):
    """rxe cannot do what it was asked to, and says why."""


def command() -> str:
    """Returns the path of the command ``rxe``: that of this package, or else the first in ``PATH``."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places: List[str] = []
    for package in metadata.distributions(path=[here]):
        # Whatever the package is called on an index.
        if "rxe.pytest_plugin" in (package.read_text("entry_points.txt") or ""):
            files = [file for file in package.files or [] if file.name == "rxe" and file.parent.name == "bin"]
            places += [os.path.abspath(str(file.locate())) for file in files]
    for place in places:
        if os.path.isfile(place):
            return place
    found = shutil.which("rxe")
    if found is None:
        raise Error("the command rxe is neither installed with this package nor in PATH")
    return found


def env(
    *,
    device: Optional[str] = None,
    fault: Optional[str] = None,
    seed: Optional[int] = None,
    pcap: Optional[_Path] = None,
    **options: Option,
) -> Dict[str, str]:
    """Returns the variables that make a program use rxe, as ``rxe env`` prints them.

    They are to be added to a program's environment: ``{**os.environ, **rxe.env(device="rxe_lo")}``. In this
    process itself they have no effect, since its libraries are loaded already.
    """
    options.update(device=device, fault=fault, seed=seed, pcap=pcap)
    line = [command(), "env", *_arguments(options)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    if done.returncode != 0:
        raise Error(done.stderr.strip())
    # Such as the seed that was chosen.
    sys.stderr.write(done.stderr)
    # Each line is `export NAME='value'`.
    words = shlex.split(done.stdout)
    return dict(word.split("=", 1) for word in words if "=" in word)


def argv(
    program: Union[str, Sequence[_Path]],
    *,
    device: Optional[str] = None,
    fault: Optional[str] = None,
    seed: Optional[int] = None,
    pcap: Optional[_Path] = None,
    **options: Option,
) -> List[str]:
    """Returns the command line that runs a program, with its arguments, under rxe.

    It is for ``subprocess``: ``subprocess.run(rxe.argv(["./hello"], device="rxe_lo"), check=True)``.
    """
    options.update(device=device, fault=fault, seed=seed, pcap=pcap)
    words = [program] if isinstance(program, str) else [os.fspath(word) for word in program]
    return [command(), "run", *_arguments(options), "--", *words]


def _arguments(options: Dict[str, Option]) -> List[str]:
    found = []
    for name, value in options.items():
        # `as_`, since `as` is a word of the language.
        option = "--" + name.rstrip("_").replace("_", "-")
        if value is True:
            found.append(option)
        elif value is not None and value is not False:
            found.append(f"{option}={value if isinstance(value, int) else os.fspath(value)}")
    return found
