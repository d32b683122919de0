"""Signatures that a site adds: every `*.toml` of a folder."""

from __future__ import annotations

from pathlib import Path

from sparkd.signals.catalogue import Catalogue, extend

FOLDER = Path("/etc/sparkd/signatures.d")
FILE_BYTES_MAX = 1 << 20


def with_site_signatures(catalogue: Catalogue, folder: Path = FOLDER) -> tuple[Catalogue, tuple[str, ...]]:
    """Return *catalogue* with those of *folder*, and what is wrong with the files that were left out.

    No folder is no mistake. Later files replace signatures of earlier ones, and of the package, by their id.
    """
    texts, problems = [], []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:
        return catalogue, ()
    except OSError as error:
        return catalogue, (f"{folder}: cannot be read: {error.strerror}",)
    for path in paths:
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                problems.append(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB")
                continue
            texts.append((str(path), path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
    if not texts:
        return catalogue, tuple(problems)
    extended, more = extend(catalogue, texts)
    return extended, (*problems, *more)
