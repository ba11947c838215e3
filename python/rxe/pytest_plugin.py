"""The fixture ``rxe`` for pytest: it runs programs under rxe, and keeps their captures when the test fails."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Generator, List, Optional, Sequence, Union

import pytest

from . import Option, argv

if TYPE_CHECKING:
    import pluggy

#: The device of loopback, which is the same on each machine.
LOOPBACK = "rxe_lo"

Program = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]


class Rxe:
    """Runs programs for one test. Each process that opens a device writes a capture into ``captures``."""

    def __init__(self, captures: Path, name: str, keep_in: Optional[str]) -> None:
        self.captures = captures
        self._name = name
        self._keep_in = keep_in
        self._running: List["subprocess.Popen[bytes]"] = []

    def run(
        self,
        program: Program,
        *,
        timeout: float = 60,
        check: bool = True,
        device: Optional[str] = LOOPBACK,
        fault: Optional[str] = None,
        seed: Optional[int] = None,
        **options: Option,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program to its end. Its standard output is ``stdout`` of the result.

        Raises ``subprocess.CalledProcessError`` if it fails, unless ``check`` is false, and
        ``subprocess.TimeoutExpired`` if it takes more than ``timeout`` seconds.
        """
        __tracebackhide__ = True
        options.setdefault("pcap", self.captures / "%p.pcapng")
        line = argv(program, device=device, fault=fault, seed=seed, **options)  # type: ignore[arg-type]
        try:
            done = subprocess.run(
                line, stdout=subprocess.PIPE, timeout=timeout, check=check, encoding="utf-8", errors="replace"
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
            _show(failed.stdout)
            # Without the source of subprocess, which pytest would print.
            raise failed.with_traceback(None)
        _show(done.stdout)
        return done

    def start(
        self,
        program: Program,
        *,
        port: Optional[int] = None,
        timeout: float = 60,
        device: Optional[str] = LOOPBACK,
        fault: Optional[str] = None,
        seed: Optional[int] = None,
        **options: Option,
    ) -> "subprocess.Popen[bytes]":
        """Starts a program, such as a server. If it still runs when the test ends, it is ended.

        With ``port``, waits until the program listens on this TCP port, ``timeout`` seconds at most.
        """
        __tracebackhide__ = True
        if port is not None and _listens(port):
            raise RuntimeError(f"another program listens on TCP port {port}")
        options.setdefault("pcap", self.captures / "%p.pcapng")
        line = argv(program, device=device, fault=fault, seed=seed, **options)  # type: ignore[arg-type]
        process = subprocess.Popen(line)
        self._running.append(process)
        end = time.monotonic() + timeout
        while port is not None and not _listens(port):
            if process.poll() is not None:
                name = line[line.index("--") + 1]
                raise RuntimeError(f"{name}: exit code {process.returncode} before it listens on port {port}")
            if time.monotonic() > end:
                raise TimeoutError(f"nothing listens on TCP port {port}")
            time.sleep(0.02)
        return process

    def _stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _keep(self) -> str:
        """Keeps the captures, and says where they are."""
        self._stop()
        kept = sorted(self.captures.iterdir())
        if self._keep_in is not None:
            to = Path(self._keep_in).absolute()
            to.mkdir(parents=True, exist_ok=True)
            kept = [Path(shutil.move(str(file), str(to / f"{self._name}-{file.name}"))) for file in kept]
        if not kept:
            return "no capture: no program has opened a device"
        return "\n".join(f"capture: {file}" for file in kept)


def _show(text: Union[None, str, bytes]) -> None:
    """Lets pytest show this output with a test that fails."""
    if text:
        print(text if isinstance(text, str) else text.decode("utf-8", "replace"), end="")


def _listens(port: int) -> bool:
    """Returns whether a socket of this network listens on a TCP port.

    A connection would tell, too, but many servers accept only one.
    """
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and local.endswith(f":{port:04X}"):
                return True
    return False


_KEY = pytest.StashKey[Rxe]()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("rxe").addoption(
        "--rxe-captures",
        metavar="DIR",
        help="move the captures of failed tests into this directory (without it they stay in pytest's temporary one)",
    )


@pytest.fixture
def rxe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Rxe, None, None]:
    """Runs programs under rxe: ``rxe.run(["./hello"])``, ``rxe.start(["./server"], port=18515)``."""
    name = re.sub(r"\W+", "_", request.node.name).strip("_")[:60]
    captures = tmp_path_factory.mktemp(f"rxe-{name}")
    runner = Rxe(captures, name, request.config.getoption("--rxe-captures"))
    request.node.stash[_KEY] = runner
    yield runner
    runner._stop()
    if _FAILED not in request.node.stash:
        shutil.rmtree(captures)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, "pluggy.Result[pytest.TestReport]", None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed and _KEY in item.stash and _FAILED not in item.stash:
        item.stash[_FAILED] = True
        report.sections.append(("rxe", item.stash[_KEY]._keep()))
