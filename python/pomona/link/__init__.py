"""The link between the server and its worker processes.

`messages` and `framing` are the contract and serve both sides; `client` and `process` are the server's.
"""
