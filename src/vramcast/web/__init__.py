"""The page and its JSON API: one transport-free service, and a server for it on this machine."""
