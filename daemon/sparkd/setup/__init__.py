"""Setting a node up: `sparkctl install`, `uninstall`, `init`, `join`.

Rules of this package:
- Planning is pure: facts of the host (`host.Host`) and the package's own files (`package.Package`) in, a
  `steps.Plan` out. What a plan says under --dry-run is what `apply` does, and nothing else.
- A plan with a refusal is not begun. Each step may be done twice; a second run finds nothing left to do.
- What is sparkd's (units, rules) is replaced, a changed copy kept beside it as .old. What is the operator's
  (the configuration) is kept when it was changed, the new default put beside it as .new. What was written
  last is remembered by its digest in `places.MANIFEST`.
- A secret is never printed, but in the one line that `init` is for.

`units` and `etc` here are links to the top-level folders: that makes them the package's data.
"""
