"""`sparkd check` warns of what this machine does not show; the configuration is right all the same."""

from __future__ import annotations

import pytest

from sparkd.cli import seen_here, sparkd


@pytest.fixture
def config(tmp_path, monkeypatch):
    networks, model = tmp_path / "net", tmp_path / "model"
    for folder in (networks / "cx0", networks / "cx1", model):
        folder.mkdir(parents=True)
    monkeypatch.setattr(seen_here, "NETWORKS", networks)

    def written(model=model, interface="cx0,cx1"):
        nodes = "".join(
            f'[[node]]\nname = "n{n}"\nrole = "{role}"\naddress = "10.0.0.{n}"\ninterface = "{interface}"\n'
            for n, role in ((1, "head"), (2, "worker"))
        )
        path = tmp_path / "sparkd.toml"
        cluster = '[cluster]\nname = "c"\nkey = "0123456789abcdef"\n'
        path.write_text(f'{cluster}{nodes}[engine]\nmodel = "{model}"\n', encoding="utf-8")
        return ["check", "--config", str(path), "--node", "n1"]

    return written


def test_nothing_is_warned_of_where_all_is_seen(config, capsys) -> None:
    assert sparkd.main(config()) == 0
    assert "warning" not in capsys.readouterr().out


def test_a_folder_and_an_interface_that_are_not_here_are_named(config, capsys) -> None:
    assert sparkd.main(config(model="/no/such/model", interface="cx0,cx7")) == 0
    out = capsys.readouterr().out
    assert "warning: engine.model = '/no/such/model': no such folder is seen here" in out
    assert "warning: node.interface = 'cx7' of n1: no such network interface here" in out
    assert out.count("warning") == 2
    assert ": right for n1 (head) of c" in out
