"""HTTP: the API and the page.

operation    declares an operation once: served from it, described from it
app          the table of operations as an application and as an OpenAPI document
dispatch     from a request to a response: authorize, read, run the handler in a thread
security     the check of Host, origins, and the headers of every response
auth         tokens, one-time codes, sessions, roles, limits per role
request      parameters and bodies, checked against the types of an operation; values without secrets
errors       errors as problem documents
service      the parts that handlers use: the engine, background tasks, recently read states
live         the stream of events: one reader of the journal, many clients with cursors
page         the files of the page
connection   deadlines and limits of connections
server       a socket, uvicorn, signals
routes/      the operations by subject: parse, call the engine, respond

Invariant: every operation has a role; nothing is returned before Host, caller, origin and role have been checked.
"""
