"""What survives a crash: the stamp file, the history, and the lock that keeps one daemon a node."""
