"""What makes a kill possible when nothing else is: memory locked and taken ahead, priority, a rehearsal."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys

from sparkd.guard.members import HELD_MOST

# linux/mman.h; malloc.h of glibc.
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_HEAP_BYTES = 384 << 10
_PR_SET_TIMERSLACK = 29
# Sizes of the small objects of a look or a kill, by the allocator's classes, and how many of each.
_SMALL_MOST, _STEP, _OF_EACH = 512, 16, 32
_MAPS_PART_BYTES = 16 << 10
OOM_SCORE_ADJ = -1000


def settle_malloc() -> None:
    """Have malloc keep what it has: no mappings of its own, nothing given back, one heap for both threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_ARENA_MAX, 1)
    libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # nanoseconds; 50 µs otherwise


def lock() -> str:
    """Lock this process's memory, what comes later included; return why not, empty where it is locked.

    Of programs and libraries the pages that are used: the rehearsal uses what a kill does, and the rest of
    the interpreter would be a third of what the guard may take. Of its own data every page, used or not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        for first, end in own_data():
            libc.mlock(ctypes.c_void_p(first), ctypes.c_size_t(end - first))
        return ""
    return f"memory is not locked: {os.strerror(ctypes.get_errno())}; give it CAP_IPC_LOCK"


def own_data() -> list[tuple[int, int]]:
    """Return where this process's writable memory of no file lies: heap, stack, arenas."""
    fd = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _MAPS_PART_BYTES):
            parts.append(part)
    finally:
        os.close(fd)
    found = []
    for line in b"".join(parts).splitlines():
        words = line.split()
        if words[1].startswith(b"rw") and words[4] == b"0":
            first, _, end = words[0].partition(b"-")
            found.append((int(first, 16), int(end, 16)))
    return found


def take_ahead() -> list[bytes]:
    """Take the heap that looks and kills will use; return what has to be kept for it to stay.

    Between the objects that are kept lies one free slot each: the allocator's pools stay, with room in them.
    """
    bytes(b"\1" * _HEAP_BYTES)  # freed at once; the heap keeps it
    kept = [bytes(size) for size in range(1, _SMALL_MOST - 32, _STEP) for _ in range(_OF_EACH)]
    del kept[::2]
    return kept


def freeze() -> None:
    """No garbage collection from here on: it would walk all of memory at a time of its own choosing."""
    gc.collect()
    gc.disable()
    gc.freeze()
    sys.setswitchinterval(0.0005)  # the clerk gives way within half a millisecond


def hold_many() -> str:
    """Be allowed a descriptor for every process of a large engine; return why not, empty where it is so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = HELD_MOST + 512
    if soft != resource.RLIM_INFINITY and soft < enough:
        most = enough if hard == resource.RLIM_INFINITY else min(hard, enough)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < enough:
            return (
                f"only {most} files may be open: processes beyond that are not held; set LimitNOFILE={enough}"
            )
    return ""


def go_first(realtime: bool) -> str:
    """Be scheduled before everything ordinary; return why not, empty where it is so."""
    if not realtime or os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        return ""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        return (
            f"no priority over others: {error.strerror}; set CPUSchedulingPolicy=rr, or give it CAP_SYS_NICE"
        )
    return ""


def go_last() -> str:
    """Be the last that the kernel's OOM killer takes; return why not, empty where it is so."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"oom_score_adj unknown: {error.strerror}"
    try:
        if int(os.read(fd, 16)) > OOM_SCORE_ADJ:
            os.pwrite(fd, str(OOM_SCORE_ADJ).encode(), 0)
    except OSError as error:
        return f"the OOM killer may take this guard: {error.strerror}; set OOMScoreAdjust={OOM_SCORE_ADJ}"
    finally:
        os.close(fd)
    return ""
