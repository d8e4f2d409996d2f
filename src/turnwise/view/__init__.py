"""The viewer: a local web page over run folders. It writes nothing but a user's notes.

`runs` finds and reads runs, `run_files` their files, `episodes` lists and searches episodes,
`server` answers the page on this machine alone, `export` makes one episode a file, `report` a whole
run.
"""
