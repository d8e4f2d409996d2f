"""The viewer: a local web page over run folders. It only reads them.

`folders` finds runs and keeps to them, `index` and `indexing` make their episodes searchable,
`app` answers the page, `server` serves it on this machine alone, `export` makes one episode a file,
`report` a whole run.
"""
