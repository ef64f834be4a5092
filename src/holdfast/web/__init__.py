"""HTTP: the API and the page.

operation    an operation, declared once: what is served and what is described
app          the table of operations as an application; dispatch: from a request to an answer
gate         which hosts and origins are answered, and what every answer carries
auth         tokens, one-time codes, sessions, roles; shares: how much each role may have at once
reading      what a request carries, checked against what its operation declares; limits
incoming     values that a request carries: from JSON to Python, without secrets
problems     errors as answers
service      what handlers work with: the engine, tasks, the live stream
tasks        work that takes longer than a request
live         one reader of the journal, many listeners, each with a cursor
cutting      large values by parts; recent: those that were looked at last
openapi      the table of operations as a document
page         the page's files
server       a socket, uvicorn, signals
routes/      the operations, by subject: parse, call the engine, answer

Invariant: no operation without a role; nothing is answered before Host, caller, origin and role have been checked.
"""
