"""What the screens show, as plain data: series, snapshots, axes. No Textual here, no file access."""
