"""What people are told when they do not look: lines of keeper/notices.jsonl, in words, to the channels they chose.

`words` turns a notice into text, `channels` reads where it goes and sends it (with apprise, which is optional),
`events` finds what no other part notices: ends of runs, a rising evaluation, a filling disk, idle GPUs. The keeper
drives all of it.
"""
