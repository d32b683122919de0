"""What `sparkctl install` and `uninstall` would do, on hosts that are only described."""

from __future__ import annotations

import pytest

from cli.setup_bed import KEY, done, host, package, runs, shipped, writes
from sparkd.setup import places
from sparkd.setup.install import plan_install
from sparkd.setup.places import CLUSTER_KEY, CONFIG, JOURNALD, MANIFEST, WATCHDOG
from sparkd.setup.steps import Keep, Link, Protect, Remove, Run, Write, plan_lines
from sparkd.setup.uninstall import plan_uninstall

DAEMON = "/etc/systemd/system/sparkd.service"
SERVE = "/etc/systemd/system/sparkd-serve.service"
OTHER = "# another default\n[Journal]\nStorage=auto\n"


def installed(**changes):
    return done(host(), plan_install(package(), host()), **changes)


def kept(plan):
    return {step.path: step.word for step in plan.steps if isinstance(step, Keep)}


def test_a_first_install_puts_everything_in_place() -> None:
    plan = plan_install(package(), host())

    assert not plan.refusals
    assert {place.target for place in places.FIXED} < set(writes(plan))
    assert [step.path for step in plan.steps if isinstance(step, Link)] == [
        "/usr/local/bin/sparkd",
        "/usr/local/bin/sparkctl",
    ]
    assert runs(plan) == [
        "systemd-sysusers sparkd.conf",
        "systemd-tmpfiles --create sparkd.conf",
        "systemctl daemon-reload",
        "systemctl --quiet enable sparkd.service",
        "systemctl restart systemd-journald",
        "systemctl daemon-reexec",
    ]
    assert plan.after == ("start it:  sudo systemctl start sparkd     and watch it:  sparkctl status",)


def test_the_note_of_what_was_installed_comes_last() -> None:
    """Who is interrupted before it finds everything still to be done."""
    plan = plan_install(package(), host())
    last = plan.steps[-1]
    assert isinstance(last, Write)
    assert last.path == MANIFEST

    half = {path: step.content for path, step in writes(plan).items() if path != MANIFEST}
    again = plan_install(package(), host(files={**host().files, **half}))

    assert [path for path in writes(again) if path != MANIFEST] == []
    assert runs(again) == runs(plan)


def test_a_second_install_has_nothing_to_do() -> None:
    plan = plan_install(package(), installed(active=frozenset({"sparkd.service"})))

    assert plan.idle
    assert set(kept(plan).values()) == {"unchanged"}


@pytest.mark.parametrize("changed", ["unit", "version"])
def test_an_upgrade_restarts_the_daemon_and_never_the_engine(changed) -> None:
    newer = package(version="1.1" if changed == "version" else "1.0")
    if changed == "unit":
        newer = package(**{"units/sparkd.service": package().texts["units/sparkd.service"] + "# newer\n"})
    running = frozenset({"sparkd.service", "sparkd-ray.service", "sparkd-serve.service"})

    plan = plan_install(newer, installed(active=running))

    assert runs(plan)[-1] == "systemctl try-restart sparkd.service"
    assert not [line for line in runs(plan) if "sparkd-ray" in line or "sparkd-serve" in line]
    assert ("systemctl daemon-reload" in runs(plan)) == (changed == "unit")


def test_a_changed_unit_of_the_engine_waits_for_its_next_start() -> None:
    newer = package(
        **{"units/sparkd-serve.service": package().texts["units/sparkd-serve.service"] + "# newer\n"}
    )
    running = frozenset({"sparkd.service", "sparkd-serve.service"})

    plan = plan_install(newer, installed(active=running))

    assert writes(plan)[SERVE].word == "replace"
    assert runs(plan) == ["systemctl daemon-reload"]


def test_a_daemon_that_does_not_run_is_not_started() -> None:
    assert not [line for line in runs(plan_install(package("1.1"), installed())) if "restart" in line]


def test_a_changed_unit_is_replaced_and_kept_beside() -> None:
    mine = b"[Service]\nExecStart=/bin/mine\n"
    before = installed()
    plan = plan_install(package(), host(files={**before.files, DAEMON: mine}))

    assert writes(plan)[f"{DAEMON}.old"].content == mine
    assert writes(plan)[DAEMON].word == "replace"


def test_a_changed_configuration_stays_and_a_new_default_is_offered_once() -> None:
    before = installed()
    before = host(files={**before.files, JOURNALD: b"[Journal]\nStorage=volatile\n"}, links=before.links)
    same = plan_install(package(), before)
    assert kept(same)[JOURNALD] == "keep"
    assert f"{JOURNALD}.new" not in writes(same)

    newer = package(**{"etc/journald/sparkd.conf": OTHER})
    plan = plan_install(newer, before)
    assert kept(plan)[JOURNALD] == "keep"
    assert writes(plan)[f"{JOURNALD}.new"].content == OTHER.encode()
    assert f"{JOURNALD}.new" not in writes(plan_install(newer, done(before, plan)))


def test_a_configuration_that_nobody_changed_becomes_the_new_default() -> None:
    plan = plan_install(package(**{"etc/journald/sparkd.conf": OTHER}), installed())

    assert writes(plan)[JOURNALD].content == OTHER.encode()
    assert "systemctl restart systemd-journald" in runs(plan)


def test_a_configuration_that_was_removed_stays_away() -> None:
    before = installed()
    files = {path: content for path, content in before.files.items() if path != WATCHDOG}
    plan = plan_install(package(), host(files=files, links=before.links))

    assert kept(plan)[WATCHDOG] == "left out"
    assert WATCHDOG not in writes(plan)


def test_a_new_default_of_the_configuration_itself_is_offered() -> None:
    newer = package(**{"etc/sparkd.toml": package().texts["etc/sparkd.toml"] + "# a new key\n"})
    plan = plan_install(newer, installed())

    assert CONFIG not in writes(plan)
    assert writes(plan)[f"{CONFIG}.new"].content.endswith(b"# a new key\n")


def test_what_an_older_version_had_is_removed() -> None:
    older = package(**{"units/sparkd-old.service": "[Unit]\nDescription=gone\n"})
    before = done(host(), plan_install(older, host()))

    plan = plan_install(package(), before)

    removed = [step.path for step in plan.steps if isinstance(step, Remove)]
    assert removed == ["/etc/systemd/system/sparkd-old.service"]
    assert "systemctl daemon-reload" in runs(plan)


def test_without_a_hardware_watchdog_systemd_is_not_told_to_feed_it() -> None:
    plan = plan_install(package(), host(present=frozenset()))

    assert WATCHDOG not in writes(plan)
    assert "systemctl daemon-reexec" not in runs(plan)


def test_the_units_run_the_programs_of_this_package() -> None:
    plan = plan_install(shipped(), host(bin_dir="/srv/venv/bin", python="/usr/bin/python3.12"))
    said = {path: step.content for path, step in writes(plan).items() if path.endswith(".service")}

    assert b"ExecStart=/srv/venv/bin/sparkd run" in said[DAEMON]
    assert b"ExecStart=/usr/bin/python3.12 -I -c " in said[SERVE]
    assert not [path for path, content in said.items() if b"/opt/sparkd" in content]


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"is_root": False}, "only root may do this: sudo sparkctl install"),
        ({"booted": False}, "systemd does not run here"),
        ({"systemd": 251}, "systemd is 251; the units need 252 or newer"),
        ({"systemd": None}, "the version of systemd is unknown"),
        ({"has_polkit": False}, "sudo apt install polkitd"),
        ({"has_journal": False}, "sudo apt install python3-systemd"),
        ({"bin_dir": "/home/ada/venv/bin"}, "install it in /opt/sparkd"),
        ({"bin_hidden": "/opt/sparkd"}, "sudo chmod a+rx /opt/sparkd"),
        ({"bin_hidden": "/root"}, "with the system's own /usr/bin/python3"),
        ({"files": {CLUSTER_KEY: b"k"}}, "sparkd.toml is missing: on the head `sudo sparkctl init`"),
        ({"files": {CONFIG: b""}}, "cluster_key is missing, and sparkd.service does not start without it"),
        ({"files": {CONFIG: b"", CLUSTER_KEY: b"\n"}}, "cluster_key is empty: copy it from the head"),
        ({"wrong": ("sparkd.toml: engine.model: is missing",), "node": None}, "engine.model: is missing"),
    ],
)
def test_a_host_that_lacks_something_is_told_what_and_is_left_as_it_is(lacking, said) -> None:
    plan = plan_install(package(), host(**lacking))

    assert len(plan.refusals) == 1
    assert said in plan.refusals[0]
    assert not [line for line in plan_lines(plan) if line.startswith("  ")]


def test_everything_that_is_lacking_is_told_at_once() -> None:
    assert len(plan_install(package(), host(has_polkit=False, systemd=249, files={})).refusals) == 4


def test_who_is_not_root_is_told_only_that() -> None:
    """What only root may read would look as if it were missing."""
    assert len(plan_install(package(), host(is_root=False, systemd=249, files={})).refusals) == 1


def test_the_configuration_is_for_the_daemon_and_the_engine() -> None:
    plan = plan_install(package(), host(config_access="644 root"))
    steps = [step for step in plan.steps if isinstance(step, Protect)]

    assert [(step.path, oct(step.mode), step.group) for step in steps] == [(CONFIG, "0o640", "sparkd-engine")]
    names = [step.argv[0] if isinstance(step, Run) else "" for step in plan.steps]
    assert plan.steps.index(steps[0]) > names.index("systemd-sysusers")  # which makes the group


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"broker_error": "the broker at 10.0.0.1:1883 does not answer (refused)"}, "sparkd waits for it"),
        ({"has_model": False}, "/srv/models/x is not there yet"),
        ({"live": False, "systemd": None}, "version of systemd in that folder is unknown"),
    ],
)
def test_what_may_come_later_is_only_a_warning(state, said) -> None:
    plan = plan_install(package(), host(**state))

    assert plan.refusals == ()
    assert [line for line in plan.warnings if said in line]


def test_another_user_for_the_engine() -> None:
    ready = host(users=frozenset({"ada"}))
    plan = plan_install(package(), ready, "ada")
    drop_in = "/etc/systemd/system/sparkd-serve.service.d/10-engine-user.conf"

    assert b"[Service]\nUser=ada\n" in writes(plan)[drop_in].content
    assert b"/var/tmp/sparkd-ray 2750 ada sparkd-engine -" in writes(plan)[places.TMPFILES].content
    assert "sparkd.service.d" not in " ".join(writes(plan))

    after = done(ready, plan)
    assert plan_install(package(), after).idle  # remembered, by the drop-in

    back = plan_install(package(), after, places.ENGINE_USER)
    assert drop_in in [step.path for step in back.steps if isinstance(step, Remove)]
    assert b" ada " not in writes(back)[places.TMPFILES].content


@pytest.mark.parametrize(
    ("user", "said"), [("nobody-here", "sudo adduser nobody-here"), ("root", "not run as root")]
)
def test_an_engine_user_that_cannot_be(user, said) -> None:
    assert said in plan_install(package(), host(users=frozenset({"root"})), user).refusals[0]


def test_a_node_with_another_name_than_its_host() -> None:
    plan = plan_install(package(), host(hostname="dgx-17"))
    names = [path for path in writes(plan) if path.endswith("10-node.conf")]

    assert len(names) == 3
    assert b"Environment=SPARKD_NODE=spark-a\n" in writes(plan)[names[0]].content


def test_credentials_that_are_there_are_handed_on() -> None:
    files = {**host().files, "/etc/sparkd/broker_password": b"secret word\n"}
    plan = plan_install(package(), host(files=files))
    drop_in = writes(plan)[f"{DAEMON}.d/10-credentials.conf"].content

    assert b"LoadCredential=broker_password:/etc/sparkd/broker_password\n" in drop_in
    assert b"api_token" not in drop_in
    assert b"broker" not in b"".join(
        step.content for path, step in writes(plan).items() if "sparkd-ray" in path
    )


def test_rays_token_goes_to_the_engine_and_to_the_daemon() -> None:
    plan = plan_install(package(), host(files={**host().files, "/etc/sparkd/ray_token": b"secret word\n"}))
    handed = [
        path for path, step in writes(plan).items() if b"LoadCredential=ray_token:/etc/" in step.content
    ]

    assert handed == [f"/etc/systemd/system/{unit}.d/10-credentials.conf" for unit in sorted(package().units)]


def test_a_secret_that_others_may_read_is_taken_from_them_and_none_is_printed() -> None:
    plan = plan_install(package(), host(open_files=frozenset({CLUSTER_KEY})))

    assert [step.path for step in plan.steps if isinstance(step, Protect)] == [CLUSTER_KEY]
    assert KEY not in "\n".join(plan_lines(plan))
    assert KEY not in repr(plan)


def test_every_line_of_the_plan_says_what_for() -> None:
    lines = plan_lines(plan_install(package(), host()))

    assert lines[0] == "install sparkd 1.0 on spark-a, head of sparks"
    daemon = next(line for line in lines if DAEMON in line)
    assert daemon.split(maxsplit=2)[::2] == ["new", "the daemon"]
    assert all(len(line.split(maxsplit=2)) == 3 for line in lines[1:])


def test_uninstall_takes_away_what_install_brought_and_leaves_what_is_yours() -> None:
    before = installed(present=frozenset({"/etc/sparkd", "/var/lib/sparkd"}))
    plan = plan_uninstall(package(), before)
    after = done(before, plan)

    assert set(after.files) == {CONFIG, CLUSTER_KEY, MANIFEST, "/etc/sparkd/guard.conf"}
    assert runs(plan)[0] == "systemctl --quiet disable --now sparkd.service"
    assert not [step for step in plan.steps if isinstance(step, Remove) and step.tree]
    assert "--purge" in plan.after[0]
    assert plan_install(package(), after).steps  # and it can come back
    assert writes(plan_install(package(), after))[JOURNALD].word == "new"


def test_uninstall_keeps_a_changed_configuration_and_purge_does_not() -> None:
    before = installed(present=frozenset({"/etc/sparkd", "/var/lib/sparkd"}))
    before = host(files={**before.files, JOURNALD: b"mine"}, present=before.present)

    assert kept(plan_uninstall(package(), before)) == {JOURNALD: "keep"}
    purged = plan_uninstall(package(), before, purge=True)
    gone = {(step.path, step.tree) for step in purged.steps if isinstance(step, Remove)}
    assert {(JOURNALD, False), ("/etc/sparkd", True), ("/var/lib/sparkd", True)} <= gone


def test_uninstall_is_refused_under_a_running_engine() -> None:
    plan = plan_uninstall(package(), installed(active=frozenset({"sparkd-serve.service"})))

    assert plan.refusals == (
        "the engine runs (sparkd-serve.service): end it first, on the head: sparkctl stop",
    )


def test_uninstall_of_nothing_is_nothing() -> None:
    assert plan_uninstall(package(), host()).idle
    assert plan_uninstall(package(), host(), purge=True).idle


def test_a_damaged_note_is_no_note() -> None:
    before = installed()
    for damaged in (b"{", b"[]", b'{"files": 3}', b'{"version": "1.0"}'):
        plan = plan_install(package(), host(files={**before.files, MANIFEST: damaged}, links=before.links))
        assert MANIFEST in writes(plan)
        assert [step for step in plan.steps if isinstance(step, Run)]
