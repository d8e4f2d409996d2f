"""The viewer: a local web page over run folders. It writes nothing but a user's notes.

`library` finds runs, `runs` and `run_files` read one, `episodes` lists and searches its episodes,
`app` answers the page, `server` serves it on this machine alone, `export` makes one episode a file,
`report` a whole run.
"""
