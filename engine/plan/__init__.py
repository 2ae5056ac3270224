"""Will it fit, how long, how much, and what to change: the closed form, from a request to a result.

One pure function, `plan.plan(request)`, joins the parts: shapes (parameter counts of a model), tape and layers (what
a decoder layer saves and needs in backward), memory (phases and their peak), device (allocator, context, verdict),
speed, money, disk and advice. Nothing here loads torch; an architecture that is not known here is counted by
`on_meta`, in a process of its own. May import engine.hardware and what is below it.
"""
