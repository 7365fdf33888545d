"""Results as tables and charts: one value each, and a writer for every place that shows them.

`results` reads the folders that `run` wrote; `paired` compares runs seed by seed. `study` makes a `Table` or a `Chart` of them,
with figures as `quantity` writes them. A table goes to a terminal or into Markdown by itself, a chart to a page by
`page` and into a picture by `picture`. `report` puts a page together. Begin with `table` and `chart`.
"""
