"""Backup: a run's valuables on a remote that rclone knows, proved there by hash, and back from it on another server.

A ledger in the run folder knows what is where and in what state; rclone's daemon moves the bytes; the remote holds
plain files that can be read without ftui. The keeper runs `engine.backup.worker` after each sealed checkpoint;
`ftui backup now` does the same in the foreground. It may import engine.checkpoint and what is below it; no torch.
"""
