"""Random worlds: the real core of every node, in a simulated outside that does its worst.

One seed is one world: `plan` draws the cluster's shape, its policy and a list of faults; `world` runs it on
one heap of events, with chances from generators of the same seed and no clock. First comes a safety stretch
full of faults; then everything heals, a person does what sparkd says is needed, and `liveness` demands that
it serves within a bound made of the policy's own times.

- `daemon`, `effects`: the loop and the adapters around one core; inputs before timers, disk before commands.
- `machine`, `disk`: a node with its power, clock, memory and lying process trees; what a crash leaves of it.
- `engine`, `memory`: the engine as it truly is, and what it truly needs.
- `network`, `broker`, `post`: paths, sessions, retained messages, wills; in some worlds the wire's bytes.
- `faults`: what goes wrong, and people.
- `checkers`, `judgements`, `truth`, `liveness`: the rules, held against the world's truth, never a core's.
- `mutants`, `silences`: each rule of the design switched off once; the worlds must find it.
- `shrink`, `run`, `batch`, `__main__`: from a violation to its shortest story and the command for it.

`python -m sim.chaos --worlds N --seed S [--jobs J]`; the last line is JSON.
"""
