"""Certificates of the cluster's broker: given and looked at, or made, by the program openssl.

What is returned is text: where it goes is the plan's to say.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparkd.setup.broker import Certificates

TIMEOUT_S = 30
DAYS = "3650"


class TlsError(Exception):
    """The certificates cannot be used or made; each line says what to do."""


def given(ca: str, cert: str, key: str, address: str) -> Certificates:
    """Return the certificates in these files. Raises TlsError, with a line for everything that is wrong."""
    files = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    texts: dict[str, str] = {}
    wrong = []
    for option, path in files.items():
        try:
            texts[option] = Path(path).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "is no PEM file (text is expected)"
            wrong.append(f"{option} {path}: {said}")
    if not wrong:
        wrong = list(_faults(files, address))
    if wrong:
        raise TlsError("\n".join(wrong))
    return Certificates(texts["--tls-ca"], texts["--tls-cert"], texts["--tls-key"])


def made(address: str) -> Certificates:
    """Return certificates of an authority of their own, whose key is thrown away. Raises TlsError."""
    with tempfile.TemporaryDirectory(prefix="sparkd-tls-") as folder:
        at = Path(folder)
        (at / "ext").write_text(f"subjectAltName=IP:{address}\n", encoding="ascii")
        new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        signed = ("-CA", "ca", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        for step in (
            (*new, "-x509", "-days", DAYS, "-subj", "/CN=sparkd-ca", "-keyout", "ca.key", "-out", "ca"),
            (*new, "-subj", "/CN=broker", "-keyout", "key", "-out", "csr"),
            ("x509", "-req", "-in", "csr", *signed, "-days", DAYS, "-out", "cert"),
        ):
            done = _openssl(*step, folder=folder)
            if done.returncode:
                raise TlsError(f"openssl {step[0]} failed: {done.stderr.strip()[-300:]}")
        return Certificates(*((at / name).read_text(encoding="ascii") for name in ("ca", "cert", "key")))


def _faults(files: dict[str, str], address: str) -> Iterator[str]:
    ca, cert, key = files.values()
    for option, path in (("--tls-ca", ca), ("--tls-cert", cert)):
        if _openssl("x509", "-in", path, "-noout").returncode:
            yield f"{option} {path}: holds no certificate in PEM form"
            return
    own = _openssl("x509", "-in", cert, "-noout", "-pubkey").stdout
    held = _openssl("pkey", "-in", key, "-pubout", "-passin", "pass:").stdout
    if not held:
        yield f"--tls-key {key}: holds no private key that can be read without a passphrase"
    elif own != held:
        yield f"--tls-key {key}: is not the key of {cert}"
    if _openssl("verify", "-CAfile", ca, cert).returncode:
        yield f"--tls-cert {cert}: is not signed by {ca}, or has expired: openssl verify -CAfile {ca} {cert}"
    if "does match" not in _openssl("x509", "-in", cert, "-noout", "-checkip", address).stdout:
        yield f"--tls-cert {cert}: is not for {address}, where nodes reach it (subjectAltName=IP:{address})"


def _openssl(*arguments: str, folder: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ("openssl", *arguments),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=folder,
        )
    except FileNotFoundError:
        raise TlsError("openssl is not installed: sudo apt install openssl") from None
    except subprocess.TimeoutExpired:
        raise TlsError(f"openssl {arguments[0]} does not answer") from None
