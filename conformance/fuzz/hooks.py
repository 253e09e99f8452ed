"""What requests are made of besides the documents."""

import schemathesis


@schemathesis.hook
def map_query(context, query):
    """A watch answers a stream that lasts, which a document has no words for."""
    if isinstance(query, dict):
        query.pop("watch", None)
    return query
