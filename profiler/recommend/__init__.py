"""`profiler recommend`: what to deploy, and why not the others.

The way: job → order → candidates → choice → told, words, text; with --export → artifact, from examples/.
"""
