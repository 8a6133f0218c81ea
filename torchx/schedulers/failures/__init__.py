"""Why a process failed, read from what it left behind: texts in, failures out; nothing here knows a backend."""
