"""Where a query is answered: in this process, in a fresh interpreter, in a warm worker, or by a script of a test.

    program                 server                  workers
    Warm, Fresh ──wire──►   no torch, one loop ──►  torch; each in a session and a folder of its own
    (client, link)          (server, supervision)   (worker, known, slate)
                                   └──► template    has warmed up; Warm's workers are forked off it

The server is the parent of all (`making`, `starting`), sees how each ends (`supervision`, `output`, `deadlines`,
`processes`), and ends with the program. A worker writes its answer into memory that it shares with the server
(`slate`, one of their `files`), and goes back to the state that it began in (`known`).
"""
