"""The link between the server and its worker processes.

`messages` and `framing` are the contract and serve both sides; the rest is the server's: `client` speaks over
one connection, `process` is one worker, `supervisor` keeps one running.
"""
