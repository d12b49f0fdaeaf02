"""`profiler recommend`: what to deploy, and why not the others.

Data flows through options → answer → writers; with --export → artifact.
"""
