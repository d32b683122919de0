"""Stand-in engine: programs that behave like `ray` and `vllm` where a supervisor looks.

Same arguments, environment, lines, endpoints, processes and deaths as the real ones, in seconds and
MiB instead of minutes and GiB. README.md lists every knob and fault.
"""
