"""`profiler recommend`: what to deploy, and why not the others.

Data flows through options → candidates → choice → answer and reasons → writers; with --export → artifact.
"""
