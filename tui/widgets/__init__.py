"""Widgets of ours. They draw frozen snapshots into cell grids and send only the cells that changed."""
