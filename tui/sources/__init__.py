"""Where the screens' data comes from: readers of run folders, for use in threads. No widgets here."""
