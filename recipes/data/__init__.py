"""The built-in conversations (`builtin:support`), the hand-written parts they are made from, and their maker."""
