"""The end of the rented server: when it comes, what must happen before it, and what is only here.

`clock`, `when`, `record` and `schedule` are arithmetic over small files, for whoever shows a countdown or starts a run;
`gather`, `autopilot` and `handback` look at runs and their backups and stand above both. No torch anywhere.
"""
