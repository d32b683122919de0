"""Ray's log files: `raylet.out`, `raylet.1.out` for a second node in the same session, and so on."""

import os
from pathlib import Path


class Log:
    """One pair of .out and .err files, written line by line."""

    def __init__(self, logs_dir: str, name: str) -> None:
        stem = self._free(logs_dir, name)
        self.out_path = str(Path(logs_dir, stem + ".out"))
        self._out = Path(self.out_path).open("x", encoding="utf-8", buffering=1)  # noqa: SIM115 - for the process's life
        self._err = Path(logs_dir, stem + ".err").open("a", encoding="utf-8", buffering=1)  # noqa: SIM115

    @staticmethod
    def _free(logs_dir: str, name: str) -> str:
        stem, number = name, 0
        while Path(logs_dir, stem + ".out").exists():
            number += 1
            stem = f"{name}.{number}"
        return stem

    def write(self, text: str, *, err: bool = False) -> None:
        """To .out; errors to .err as well."""
        self._out.write(text + "\n")
        if err:
            self._err.write(text + "\n")


def make_session(temp_dir: str, session: str) -> str:
    """The session's directory with its logs and the `session_latest` link; returns the logs' path."""
    session_dir = str(Path(temp_dir, session))
    logs_dir = str(Path(session_dir, "logs"))
    Path(logs_dir).mkdir(parents=True, exist_ok=True)
    link = str(Path(temp_dir, "session_latest"))
    temporary = f"{link}.{os.getpid()}"
    Path(temporary).symlink_to(session_dir)
    Path(temporary).replace(link)
    return logs_dir
