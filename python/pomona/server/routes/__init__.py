"""Routes, one file for each group; `register` adds a group to an app."""
