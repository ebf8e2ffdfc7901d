"""A join in the browser: a page that reads state directories and nothing else.

    reading      what a join has done so far, kept up to date from its manifests
    snapshot     one JSON document with all that the page shows, or with what is new since a batch
    troubles     what is wrong with a join, in words
    sentences    its decisions, in words
    site         the pages and documents over HTTP, read-only
    server       the site on an address of this machine; `ui` for programs and notebooks
    report       the same page as one file

Nothing in a join waits for any of this. `site` and `server` need the extra `ui`.
"""
