"""What an operator works with, whether at a terminal, in a browser or through an agent.

words      values as people read and write them
shapes     what records look like
records    runs, versions, changes, prompts … as records: what `--json` prints and what the API answers
plan       what will be done, told before it is
standing   how a run stands after something was done to it
questions  which question is meant, what it wants, an answer as people type it
putting    a large value into a state
census     how many runs stand how, and which are the largest
lookup     what is meant by a reference, a filter, a path

Invariant: the command line, the web and the tools of agents say the same about the same thing, because they say it with
this.
"""
