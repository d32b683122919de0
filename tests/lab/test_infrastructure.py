"""The lab's own tools, without an engine: namespaces and the memory hog do what the scenarios rely on."""

import http.server
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from lab import faults, hog, netns

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(netns.why_not() is not None, reason=str(netns.why_not())),
]
TESTS = pathlib.Path(netns.__file__).parents[1]


def namespaces():
    return {entry.name for entry in netns.NAMESPACES.iterdir()} if netns.NAMESPACES.exists() else set()


@pytest.fixture(name="nodes", scope="module")
def nodes_fixture():
    with netns.pair() as nodes:
        yield nodes


@pytest.fixture(name="web")
def web_fixture(nodes):
    """A web server on spark-b's fabric address."""
    handler = http.server.SimpleHTTPRequestHandler
    handler.log_message = lambda *_: None
    server = nodes[1].call(lambda: http.server.ThreadingHTTPServer(("192.168.200.13", 8000), handler))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield "http://192.168.200.13:8000/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_each_node_has_its_fabric_and_its_management_address(nodes):
    for node in nodes:
        shown = subprocess.check_output([*node.enter(), "ip", "-br", "address"], text=True)
        assert f"{node.fabric_address}/24" in shown
        assert f"{node.management_address}/24" in shown


def test_a_command_on_a_node_sees_that_node_s_interfaces(nodes):
    shown = subprocess.check_output([*nodes[0].enter(), "ls", "/sys/class/net"], text=True)
    assert set(shown.split()) == {"lo", "fab0", "mgmt0"}


def test_one_node_reaches_the_other_and_a_pulled_cable_is_noticed(nodes, web):
    one, other = nodes
    assert one.http_get(web).status == 200
    other.link_down()
    with pytest.raises(OSError):
        one.http_get(web, timeout_s=1.0)
    other.link_up()
    assert netns.wait_until(lambda: answers(one, web), 5.0)


def answers(node, url):
    try:
        return node.http_get(url, timeout_s=1.0).status == 200
    except OSError:
        return False


def test_the_machine_itself_has_none_of_the_addresses(nodes):
    shown = subprocess.check_output(["ip", "-br", "address"], text=True)
    assert nodes[0].fabric_address not in shown


def test_leaving_removes_the_namespaces_and_what_runs_in_them():
    with netns.pair() as (one, _):
        sleeper = subprocess.Popen([*one.enter(), "sleep", "60"])
        made = one.namespace
        assert made in namespaces()
        assert netns.wait_until(lambda: sleeper.pid in one.pids(), 20)
    assert sleeper.wait(5) == -signal.SIGKILL
    assert made not in namespaces()


def start_holder():
    """A process that holds a pair until it is ended; it and its namespace's name."""
    program = "from lab import netns\nwith netns.pair() as (a, b):\n print(a.namespace, flush=True)\n input()"
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder = subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes)
    return holder, holder.stdout.readline().strip()


def end(holder, number):
    holder.send_signal(number)
    try:
        return holder.wait(10)
    finally:
        holder.stdin.close()
        holder.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_termination_signal_cleans_up(number):
    holder, made = start_holder()
    assert made in namespaces()
    assert end(holder, number) == 128 + number
    assert made not in namespaces()


def test_what_a_killed_run_left_is_removed_and_a_living_one_is_not(nodes):
    holder, made = start_holder()
    end(holder, signal.SIGKILL)
    assert made in namespaces()
    assert made in netns.cleanup()
    assert made not in namespaces()
    assert nodes[0].namespace in namespaces()


def test_a_node_s_processes_are_found_by_stamp_and_by_namespace_and_only_they_are_killed(nodes):
    environment = {"SPARKD_STAMP": "test/spark-a/7/ray", "PATH": os.environ["PATH"]}
    sleeper = subprocess.Popen([*nodes[0].enter(), "sleep", "60"], env=environment)
    assert netns.wait_until(lambda: faults.stamped("test/spark-a/7/"), 5.0)
    assert netns.wait_until(lambda: "sleep" in faults.on_node(nodes[0])[0].title, 5.0)
    (found,) = faults.stamped("test/spark-a/7/")
    assert found.pid == sleeper.pid
    assert faults.on_node(nodes[1]) == []
    with faults.frozen(found):
        state = pathlib.Path(f"/proc/{found.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T"
    assert faults.kill(found) == 1
    assert sleeper.wait(5) == -signal.SIGKILL
    assert faults.kill(found) == 0


def resident_bytes(pid):
    """What a process holds, None where there is no such process (the machine's own sum moves with others)."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_the_hog_reaches_its_target_and_gives_everything_back():
    available, total = hog.meminfo()
    share = (available - (2 << 30)) / total
    with faults.memory_hog(share, hold_s=60) as memory:
        held = memory.wait_for("holding", 30)
        assert held is not None
        assert held["held_bytes"] >= 256 << 20
        assert resident_bytes(memory.process.pid) >= held["held_bytes"]
    assert resident_bytes(memory.process.pid) is None


def test_the_hog_refuses_to_go_below_its_cap():
    with faults.memory_hog(0.01) as memory:
        assert memory.wait_for("holding", 5) is None
        assert memory.process.returncode == 1


def test_the_hog_dies_with_its_parent():
    program = (
        "from lab import faults, hog\n"
        "available, total = hog.meminfo()\n"
        "with faults.memory_hog((available - (128 << 20)) / total, hold_s=60) as memory:\n"
        " memory.wait_for('started', 5); print(memory.process.pid, flush=True); input()"
    )
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes)
    child = faults.inspect(int(parent.stdout.readline()))
    end(parent, signal.SIGKILL)
    assert faults.gone(child, deadline_s=5.0)
