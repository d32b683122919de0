"""The memory guard of one node: a process of its own that ends the engine before the host wedges.

On unified memory an exhausted node does not fail an allocation, it stops answering. The guard therefore
looks at the memory by itself, up to a hundred times a second near the floor, and kills the engine's part
of this node while there is still something left to kill with. It imports the standard library alone, and
of that only what is small; it runs without the daemon, Docker and the broker.

    settings.py  keys, defaults, refusals            numbers.py   the kernel's texts as numbers
    pools.py     the files it reads, held open       decide.py    trend, pause, verdict: pure
    lease.py     the daemon's floors                 curve.py     the last minute
    members.py   who is killed, in which order       cgroups.py, tree.py   where they are found
    trip.py      from the verdict to the empty slice telling.py   status, record, log
    shm.py       what the dead leave in /dev/shm     rivals.py    who else kills for memory
    clerk.py     what may block, on a second thread  locked.py    memory, priority, rehearsal
    watch.py     the loop
"""
