"""The program that the ranks run: tokenise once, train, save, stop in order.

Imports torch and its libraries, except for `launcher`, which builds the command line for the supervisor and must
stay light: so nothing is imported here.
"""
